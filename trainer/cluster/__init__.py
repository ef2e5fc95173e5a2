"""A run on a Ray cluster: engine replicas and learner ranks as actors behind the same seams as on one machine."""
