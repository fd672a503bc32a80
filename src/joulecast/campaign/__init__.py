"""Campaigns: measure what tells most about a device, store it at once, and fit an estimator.

campaign         trials that an estimator proposes for the networks of a target
atlas_campaign   trials for any network, in the order of a design
trial_log        claim, measure and store one trial, repeat it if it contradicts an earlier one
campaign_record  how far a campaign is, for other processes, and the request to stop it
doubtful_trials  stored observations that look wrong, to be measured again
anchor_rates     the peaks of a device, measured first
time_guidance    campaigns whose energies come later, from a power trace
atlas_summary    what an atlas knows about a device
"""

from joulecast.campaign.campaign import (
    CampaignResult,
    Progress,
    find_profile_key,
    run_campaign,
)
from joulecast.campaign.trial_log import ObservationLog

__all__ = [
    "CampaignResult",
    "ObservationLog",
    "Progress",
    "find_profile_key",
    "run_campaign",
]
