"""A log of observations that keeps them in a list."""

from joulecast.campaign import ObservationLog


class MemoryLog(ObservationLog):
    def __init__(self):
        self.observations = []

    def add_observation(self, observation):
        self.observations.append(observation)
