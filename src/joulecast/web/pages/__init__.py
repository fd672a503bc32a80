"""Pages of the dashboard: one module each, with the HTML page and its JSON version.

    PAGE = DashboardPage("/devices", "Devices", "Profiles with their meter and accuracy.", router)

``app.py`` lists the pages in the order of the navigation.
"""
