"""Measure on devices elsewhere: an agent on the device takes trials and returns observations.

    coordinator                                       device
    RemoteMeasurer ──request (JSON)──▶ HTTP or ssh ──▶ AgentService ──▶ Measurer
                   ◀──answer (JSON)───                 one request at a time

addresses   addresses of agents, such as http://board:8377, and the secret that clients share
messages    requests and answers
service     answer requests over HTTP or stdin: check, measure, remember the last answers
command     the program on the device
client      a measurer whose device is elsewhere

While it measures, the agent does nothing else: it has one thread, polls nothing and writes no file.
A client that lost its connection asks again with the same id, and gets the answer that was made
meanwhile: no observation is lost or made twice. Only data is accepted, never code.
"""
