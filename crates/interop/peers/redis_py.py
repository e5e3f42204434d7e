"""Locks of redis-py, or the commands of Spring's `setIfAbsent` with a Lua delete, driven over standard input and output.

The lines are those of `Peer.java`: `id verb key=value ...` with percent-encoded values, and answers in JSON. Commands
with `worker=N` run one after the other on the thread of that worker, others on a thread of their own.
"""

import json
import os
import queue
import struct
import sys
import threading
import time
import urllib.parse
import uuid

import redis
import redis.exceptions
import redis.lock

OUT = threading.Lock()
CLIENTS = {}
WORKERS = {}
LOCKS = {}


def say(answer):
    with OUT:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


class NotHeld(Exception):
    pass


class RedisPy:
    """`redis.lock.Lock`; without a timeout its key has no expiry."""

    def __init__(self, client, name, lease):
        timeout = None if lease == 0 else lease / 1000
        self.lock = redis.lock.Lock(client, name, timeout=timeout, thread_local=False)

    def acquire(self, wait):
        if wait is None:
            return self.lock.acquire(blocking=True)
        if wait == 0:
            return self.lock.acquire(blocking=False)
        return self.lock.acquire(blocking=True, blocking_timeout=wait / 1000)

    def release(self):
        try:
            self.lock.release()
        except redis.exceptions.LockError as error:
            raise NotHeld(str(error)) from error

    def is_held(self):
        return self.lock.local.token is not None and self.lock.owned()


class Spring:
    """`opsForValue().setIfAbsent(key, value, timeout)`, and the script with which such code deletes its own value.

    The value is what the JDK serialises a string to, as `RedisTemplate` does by default.
    """

    DELETE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"

    def __init__(self, client, name, lease):
        self.client, self.name, self.lease = client, name, lease
        text = str(uuid.uuid4()).encode()
        self.value = b"\xac\xed\x00\x05t" + struct.pack(">H", len(text)) + text

    def acquire(self, wait):
        until = None if wait is None else time.monotonic() + wait / 1000
        while True:
            if self.client.set(self.name, self.value, nx=True, px=self.lease or None):
                return True
            if until is not None and time.monotonic() >= until:
                return False
            time.sleep(0.05)

    def release(self):
        if not self.client.eval(self.DELETE, 1, self.name, self.value):
            raise NotHeld("another value")

    def is_held(self):
        return self.client.get(self.name) == self.value


FORM = {"redis-py": RedisPy, "spring": Spring}[sys.argv[1]]


def taken(values, wait):
    client, watchdog = CLIENTS[values["client"]]
    lease = int(values.get("lease", "-1"))
    lock = FORM(client, values["name"], watchdog if lease == -1 else lease)
    if not lock.acquire(wait):
        return False
    LOCKS[key(values)] = lock
    return True


def key(values):
    return (values["client"], values.get("worker"), values["name"])


def perform(verb, values):
    if verb == "open":
        address = urllib.parse.urlparse(values["address"])
        client = redis.Redis(host=address.hostname, port=address.port)
        client.ping()
        CLIENTS[values["client"]] = (client, int(values["watchdog"]))
        return None
    client = CLIENTS[values["client"]][0]
    name = values.get("name")
    if verb == "close":
        client.close()
        return None
    if verb == "lock":
        return taken(values, None)
    if verb == "trylock":
        return taken(values, max(0, int(values.get("wait", "0"))))
    if verb == "unlock":
        lock = LOCKS.pop(key(values), None)
        if lock is None:
            raise NotHeld("not taken by this worker")
        return lock.release()
    if verb == "forceunlock":
        return client.delete(name) == 1
    if verb == "islocked":
        return client.exists(name) == 1
    if verb == "isheld":
        lock = LOCKS.get(key(values))
        return lock is not None and lock.is_held()
    if verb == "ttl":
        return client.pttl(name)
    raise ValueError("no such verb: " + verb)


def run(id_, verb, values):
    try:
        say({"id": id_, "value": perform(verb, values)})
    except NotHeld as error:
        say({"id": id_, "kind": "NotHeld", "error": str(error)})
    except Exception as error:  # every failure is an answer
        say({"id": id_, "kind": type(error).__name__, "error": str(error)})


def work(commands):
    while True:
        run(*commands.get())


def main():
    say({"id": 0, "value": "ready"})
    for line in sys.stdin:
        id_, verb, *pairs = line.split()
        values = dict(pair.split("=", 1) for pair in pairs)
        values = {name: urllib.parse.unquote(value) for name, value in values.items()}
        command = (int(id_), verb, values)
        if "worker" not in values:
            threading.Thread(target=run, args=command, daemon=True).start()
            continue
        worker = (values["client"], values["worker"])
        if worker not in WORKERS:
            WORKERS[worker] = queue.Queue()
            threading.Thread(target=work, args=(WORKERS[worker],), daemon=True).start()
        WORKERS[worker].put(command)
    # The other side is gone: so is this one, without giving anything back.
    os._exit(0)


main()
