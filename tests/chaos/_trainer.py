"""A trainer as a process of its own, to be killed: says what it took and what it acknowledged, a line each.

Arguments: URL, key, name, how many groups it consumes before it takes one more and does nothing with it.
"""

from __future__ import annotations

import sys
import time

from woodshed.trainers.client import Client

url, key, name, count = sys.argv[1:]
client, done = Client(url, key), 0
while True:
    for group in client.take(name, wait_s=60.0, lease_s=600.0, again=True).groups:
        print("took", group.group, group.delivery, flush=True)
        if done == int(count):
            time.sleep(600)
        client.ack([group.delivery])
        print("acked", group.group, group.delivery, flush=True)
        done += 1
