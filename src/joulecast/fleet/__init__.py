"""Profile many devices at once, and forecast what a run takes on each of them.

    fleet file ─▶ checks ─▶ store ◀── requests of `joulecast fleet profile`
                              ▲│
                   observations│ open campaigns
                              │▼
    agents ◀── campaigns ◀── Dask workers ◀── coordinator

fleet_devices     the devices of a fleet: what its file says, and whether they answer
fleet_campaigns   Dask runs the open campaigns, resumed where they stopped
fleet_forecast    joules, seconds and battery of a run on each device

The store is the truth: Dask and the coordinator hold nothing that is lost when they are killed.
Dask is imported when a cluster is started.
"""
