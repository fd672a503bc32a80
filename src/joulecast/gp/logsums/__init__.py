"""A Gaussian process over logarithms that is observed through sums of exponentials.

    z_p  = ln d_p                          latent log value of input p, d_p > 0
    z    ~ N(μ, K)
    μ_p  = ln Σ_k B_pk·c_k                 prior mean: non-negative basis B, coefficients c > 0;
                                           basis functions of the logarithm may add to it;
                                           with a cap, the soft minimum of that and ln cap_p
    K    = Σ_t [same group_t]·k_t(x, x')·(a_t² + b_t²·[same regime]) + σ_j²·[same input]
    k_t  = 1 (a level) or Matern 5/2 with a length scale for each axis
    y_i  = ln Σ_p A_ip·exp(z_p) + u_i + ε_i          an observation, A ≥ 0
    u_i  = Σ_k F_ik·u_k + j_i              discrepancy of a sum, u_k ~ N(0, σ_s²) per structure k,
                                           j_i ~ N(0, σ_t²·Σ_k F_ik²) per distinct sum
    ε_i  ~ N(0, σ_n² + v_i)                noise, of which v_i is known beforehand

Regimes share a_t² / (a_t² + b_t²) of a term's variance. Sums are linearised:

    w_ip = A_ip·exp(z̄_p) / Σ_q A_iq·exp(z̄_q),    y ≈ f(z̄) + w·(z - z̄) + u + ε

with z̄ the posterior mean, found in a few steps from the prior mean. Observations of a single input
are exact. Totals of several inputs are log-normal with the expectation and the variance of this
expansion, uncertainty included (``posterior``).

    inputs      inputs and sums over them, as arrays; sums linearised
    prior       definition of a process, its hyper-parameters θ, mean and covariance of its prior
    fit         MAP estimate of θ, with the negative log posterior and its gradient; outliers
    posterior   the process conditioned on observations, linearised around their posterior mean;
                means, variances and covariances of inputs and totals; what a measurement would gain
    selection   the observations that matter for some inputs, and adding further ones
    stored      JSON

Everything but fits and linearisations needs numpy alone. Durations and powers are two
configurations: durations are coordinates of powers, so that their uncertainty carries over
(``posterior_elasticities``), and prior means of powers are capped at the limit.
"""
