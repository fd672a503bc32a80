"""Define the tables of the store, as of the newest migration.

    profiles ─┬─ observations    one row each, in the order they were added; one is replaced
              │                  only where a power trace provides its energy
              └─ fits            one row per estimator: the latest

    fleet_devices ─┐             the devices of a fleet, as its file describes them
    fleet_requests ┴─ fleet_campaigns   one row per request and device: how far it is

    campaigns ─── campaign_progress     one row per run of a campaign, and how it got so far
    evaluations                         one row per evaluation: its latest result

Records are stored as JSON text, in which floats keep all their digits.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

METADATA = sa.MetaData()
PROFILES = sa.Table(
    "profiles",
    METADATA,
    sa.Column("key", sa.String(16), primary_key=True),
    sa.Column("device_name", sa.Text, nullable=False),
    sa.Column("power_mode", sa.Text, nullable=False),
    sa.Column("device", sa.Text, nullable=False),
    sa.Column("runtime", sa.Text, nullable=False),
    sa.Column("covers", sa.Text, nullable=False),
    sa.Column("provenance", sa.Text, nullable=False),
    sa.Column("created_at_s", sa.Double, nullable=False),
)


def _profile_key(**options: Any) -> sa.Column[str]:
    profile = sa.ForeignKey("profiles.key", ondelete="CASCADE")
    return sa.Column("profile_key", sa.String(16), profile, nullable=False, **options)


OBSERVATIONS = sa.Table(
    "observations",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    _profile_key(),
    sa.Column("trial_key", sa.String(16), nullable=False),
    sa.Column("run", sa.Text, nullable=False),
    sa.Column("taken_at_s", sa.Double, nullable=False),
    # A hash of the observation, so that adding it again has no effect.
    sa.Column("digest", sa.String(16), nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.UniqueConstraint("profile_key", "trial_key", "digest"),
)
FITS = sa.Table(
    "fits",
    METADATA,
    _profile_key(primary_key=True),
    sa.Column("estimator", sa.Text, primary_key=True),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("fitted_at_s", sa.Double, nullable=False),
    sa.Column("observation_count", sa.Integer, nullable=False),
)
FLEET_DEVICES = sa.Table(
    "fleet_devices",
    METADATA,
    sa.Column("name", sa.String(200), primary_key=True),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    # Of a profile that may have no observation yet, so nothing is referred to.
    sa.Column("profile_key", sa.String(16), nullable=False),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("changed_at_s", sa.Double, nullable=False),
)
FLEET_REQUESTS = sa.Table(
    "fleet_requests",
    METADATA,
    # A hash of the request, so that asking again has no effect.
    sa.Column("key", sa.String(16), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
)
FLEET_CAMPAIGNS = sa.Table(
    "fleet_campaigns",
    METADATA,
    sa.Column(
        "request_key",
        sa.String(16),
        sa.ForeignKey("fleet_requests.key", ondelete="CASCADE"),
        primary_key=True,
    ),
    sa.Column(
        "device",
        sa.String(200),
        sa.ForeignKey("fleet_devices.name", ondelete="CASCADE"),
        primary_key=True,
    ),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("points", sa.Integer, nullable=False),
    sa.Column("uncertainty_share", sa.Double, nullable=True),
    sa.Column("elapsed_s", sa.Double, nullable=False),
    sa.Column("requested_at_s", sa.Double, nullable=False),
    sa.Column("changed_at_s", sa.Double, nullable=False),
)
CAMPAIGNS = sa.Table(
    "campaigns",
    METADATA,
    sa.Column("key", sa.String(16), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("device", sa.Text, nullable=False),
    # Of a profile that may have no observation yet, so nothing is referred to.
    sa.Column("profile_key", sa.String(16), nullable=False),
    sa.Column("provenance", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("points", sa.Integer, nullable=False),
    sa.Column("total", sa.Integer, nullable=True),
    sa.Column("uncertainty_share", sa.Double, nullable=True),
    sa.Column("elapsed_s", sa.Double, nullable=False),
    sa.Column("left_s", sa.Double, nullable=True),
    sa.Column("is_stop_requested", sa.Boolean, nullable=False),
    sa.Column("started_at_s", sa.Double, nullable=False),
    sa.Column("changed_at_s", sa.Double, nullable=False),
)
CAMPAIGN_PROGRESS = sa.Table(
    "campaign_progress",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column(
        "campaign_key",
        sa.String(16),
        sa.ForeignKey("campaigns.key", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    sa.Column("elapsed_s", sa.Double, nullable=False),
    sa.Column("points", sa.Integer, nullable=False),
    sa.Column("uncertainty_share", sa.Double, nullable=True),
)
EVALUATIONS = sa.Table(
    "evaluations",
    METADATA,
    sa.Column("name", sa.String(80), primary_key=True),
    sa.Column("profile_key", sa.String(16), nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("made_at_s", sa.Double, nullable=False),
)
