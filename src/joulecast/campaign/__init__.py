"""Campaigns: measure what tells most about a device, store it at once, and fit an estimator.

campaign    trials that an estimator proposes for the networks of a target
trial_log   claim, measure, store and repeat trials; how far a campaign is
anchors     the peaks of a device, measured first
atlas       trials for any network, in the order of a design: measure and summarise them
"""

from joulecast.campaign.campaign import CampaignResult, run_campaign
from joulecast.campaign.trial_log import ObservationLog, Progress, find_profile_key
