"""Profile many devices at once, and forecast what a run takes on each of them.

    fleet file ─▶ checks ─▶ store ◀── requests of `joulecast fleet profile`
                              ▲│
                   observations│ open campaigns
                              │▼
    agents ◀── campaigns ◀── Dask workers ◀── coordinator

fleet_file        the devices of a fleet, as its file describes them
fleet_checks      whether each device answers, and is what the file says
device_campaign   the campaign of one device, resumed where it stopped
coordinator       which campaign runs when; retries and parks devices that stay away
cluster           Dask workers beside the coordinator
fleet_forecast    joules, seconds and battery of a run on each device

The store is the truth: Dask and the coordinator hold nothing that is lost when they are killed.
Dask is imported when a cluster is started.
"""
