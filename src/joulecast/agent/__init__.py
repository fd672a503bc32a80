"""Measure on devices elsewhere: an agent on the device takes trials and returns observations.

    coordinator                                       device
    RemoteMeasurer ──request (JSON)──▶ HTTP or ssh ──▶ AgentService ──▶ Measurer
                   ◀──answer (JSON)───                 one request at a time

While it measures, the agent does nothing else: it has one thread, polls nothing and writes no file.
A client that lost its connection asks again with the same id, and gets the answer that was made
meanwhile: no observation is lost or made twice. Only data is accepted, never code.
"""
