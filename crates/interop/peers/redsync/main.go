// Locks of redsync on one server, driven over standard input and output.
//
// The lines are those of Peer.java: `id verb key=value ...` with percent-encoded values, and answers in JSON. Commands
// with `worker=N` run one after the other, others beside them.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

type client struct {
	redis    *redis.Client
	sync     *redsync.Redsync
	watchdog time.Duration
}

type values map[string]string

var (
	out      sync.Mutex
	guard    sync.Mutex
	clients  = map[string]*client{}
	workers  = map[string]chan func(){}
	mutexes  = map[string]*redsync.Mutex{}
	notHeld  = errors.New("not held by this worker")
	anything = context.Background()
)

// Without a limit a wait ends after this many attempts, 30 ms apart.
const tries = 1 << 30

func say(id uint64, value any, err error) {
	answer := map[string]any{"id": id, "value": value}
	var taken *redsync.ErrTaken
	if errors.Is(err, notHeld) || errors.As(err, &taken) {
		answer = map[string]any{"id": id, "kind": "NotHeld", "error": err.Error()}
	} else if err != nil {
		answer = map[string]any{"id": id, "kind": fmt.Sprintf("%T", err), "error": err.Error()}
	}
	line, _ := json.Marshal(answer)
	out.Lock()
	defer out.Unlock()
	fmt.Println(string(line))
}

func (given values) millis(key string, otherwise int64) time.Duration {
	number, err := strconv.ParseInt(given[key], 10, 64)
	if err != nil || number < 0 {
		number = otherwise
	}
	return time.Duration(number) * time.Millisecond
}

func (given values) lock() string {
	return given["client"] + " " + given["worker"] + " " + given["name"]
}

func (given values) of() *client {
	guard.Lock()
	defer guard.Unlock()
	return clients[given["client"]]
}

// A wait of nil is without a limit.
func (given values) take(wait *time.Duration) (bool, error) {
	of := given.of()
	lease := given.millis("lease", of.watchdog.Milliseconds())
	attempts := tries
	if wait != nil && *wait == 0 {
		attempts = 1
	}
	mutex := of.sync.NewMutex(given["name"], redsync.WithExpiry(lease), redsync.WithTries(attempts),
		redsync.WithRetryDelay(30*time.Millisecond))
	limited, cancel := context.WithCancel(anything)
	if wait != nil && *wait > 0 {
		limited, cancel = context.WithTimeout(anything, *wait)
	}
	defer cancel()
	err := mutex.LockContext(limited)
	var taken *redsync.ErrTaken
	if wait != nil && (errors.As(err, &taken) || errors.Is(err, redsync.ErrFailed) || limited.Err() != nil && err != nil) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	guard.Lock()
	mutexes[given.lock()] = mutex
	guard.Unlock()
	return true, nil
}

func (given values) release() (any, error) {
	guard.Lock()
	mutex := mutexes[given.lock()]
	delete(mutexes, given.lock())
	guard.Unlock()
	if mutex == nil {
		return nil, notHeld
	}
	// false without an error: the key is gone.
	if done, err := mutex.Unlock(); err != nil || !done {
		var taken *redsync.ErrTaken
		if err == nil || errors.As(err, &taken) {
			err = notHeld
		}
		return nil, err
	}
	return nil, nil
}

func (given values) perform(verb string) (any, error) {
	if verb == "open" {
		address, err := url.Parse(given["address"])
		if err != nil {
			return nil, err
		}
		connected := redis.NewClient(&redis.Options{Addr: address.Host})
		opened := &client{connected, redsync.New(goredis.NewPool(connected)), given.millis("watchdog", 0)}
		guard.Lock()
		clients[given["client"]] = opened
		guard.Unlock()
		return nil, connected.Ping(anything).Err()
	}
	of, name := given.of(), given["name"]
	switch verb {
	case "close":
		return nil, of.redis.Close()
	case "lock":
		return given.take(nil)
	case "trylock":
		wait := given.millis("wait", 0)
		return given.take(&wait)
	case "unlock":
		return given.release()
	case "forceunlock":
		deleted, err := of.redis.Del(anything, name).Result()
		return deleted == 1, err
	case "islocked":
		exists, err := of.redis.Exists(anything, name).Result()
		return exists == 1, err
	case "isheld":
		guard.Lock()
		mutex := mutexes[given.lock()]
		guard.Unlock()
		if mutex == nil {
			return false, nil
		}
		value, err := of.redis.Get(anything, name).Result()
		if errors.Is(err, redis.Nil) {
			return false, nil
		}
		return value == mutex.Value(), err
	case "ttl":
		// In milliseconds; go-redis has nanoseconds for what is no time.
		left, err := of.redis.Do(anything, "PTTL", name).Int64()
		return left, err
	}
	return nil, fmt.Errorf("no such verb: %s", verb)
}

func main() {
	say(0, "ready", nil)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		id, _ := strconv.ParseUint(words[0], 10, 64)
		verb, given := words[1], values{}
		for _, pair := range words[2:] {
			key, value, _ := strings.Cut(pair, "=")
			given[key], _ = url.PathUnescape(value)
		}
		work := func() {
			value, err := given.perform(verb)
			say(id, value, err)
		}
		if given["worker"] == "" {
			go work()
			continue
		}
		worker := given["client"] + " " + given["worker"]
		if workers[worker] == nil {
			queue := make(chan func(), 64)
			workers[worker] = queue
			go func() {
				for work := range queue {
					work()
				}
			}()
		}
		workers[worker] <- work
	}
	// The other side is gone: so is this one, without giving anything back.
	os.Exit(0)
}
