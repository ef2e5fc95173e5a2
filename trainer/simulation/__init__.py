"""The trainer in virtual time: the real loop, scheduler, buffer and router over latency models."""
