import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/**
 * What {@code cargo xtask bench} measures inside the JVM. Times are nanoseconds, taken around the public calls.
 */
final class Bench {
    private static final List<RLock> HELD = new ArrayList<>();
    /** Not safe by itself: only the lock keeps threads from losing an addition. */
    private static volatile long counter;

    static String run(Peer.Command command) throws Exception {
        switch (command.get("work")) {
            case "loop":
                return loop(command);
            case "handoff":
                return handoff(command);
            case "herd":
                return herd(command);
            case "hold":
                return hold(command);
            case "release":
                return release();
            case "heap":
                return String.valueOf(heap());
            default:
                throw new IllegalArgumentException("no such work: " + command.get("work"));
        }
    }

    /** Every thread locks and unlocks until the time is over, and at least once. */
    private static String loop(Peer.Command command) throws Exception {
        String[] clients = command.get("clients").split(",");
        int threads = (int) command.number("threads");
        boolean own = command.values.containsKey("own");
        boolean checked = command.values.containsKey("checked");
        long atLeast = command.number("atleast");
        String kind = command.values.getOrDefault("kind", "plain");
        long readers = command.number("readers");
        AtomicLong total = new AtomicLong();
        AtomicLong until = new AtomicLong();
        // A slow machine ends a round before it has its acquisitions.
        AtomicLong limit = new AtomicLong();
        CountDownLatch start = new CountDownLatch(1);
        List<Times> times = new ArrayList<>();
        List<Work> works = new ArrayList<>();
        counter = 0;
        for (String name : clients) {
            RedissonClient client = Peer.client(name);
            for (int n = 0; n < threads; n++) {
                boolean reads = times.size() < readers;
                RLock lock = lock(client, kind, own ? command.get("name") + times.size() : command.get("name"), reads);
                RBucket<String> shared = command.values.containsKey("shared")
                    ? client.getBucket(command.get("shared"), StringCodec.INSTANCE) : null;
                Times mine = new Times();
                times.add(mine);
                works.add(() -> {
                    start.await();
                    do {
                        long before = System.nanoTime();
                        lock.lock();
                        long locked = System.nanoTime();
                        if (!own) {
                            section(checked, shared, reads);
                        }
                        lock.unlock();
                        mine.add((own ? System.nanoTime() : locked) - before);
                        total.incrementAndGet();
                    } while (System.nanoTime() < until.get()
                        || (total.get() < atLeast && System.nanoTime() < limit.get()));
                });
            }
        }
        Threads all = new Threads(works);
        long begin = System.nanoTime();
        until.set(begin + TimeUnit.MILLISECONDS.toNanos(command.number("millis")));
        limit.set(begin + TimeUnit.SECONDS.toNanos(60));
        start.countDown();
        all.join();
        return answer(times, System.nanoTime() - begin);
    }

    private static RLock lock(RedissonClient client, String kind, String name, boolean reads) {
        switch (kind) {
            case "plain":
                return client.getLock(name);
            case "fair":
                return client.getFairLock(name);
            case "read-write":
                return reads ? client.getReadWriteLock(name).readLock() : client.getReadWriteLock(name).writeLock();
            default:
                throw new IllegalArgumentException("no such kind: " + kind);
        }
    }

    private static void section(boolean checked, RBucket<String> shared, boolean reads) {
        long before = counter;
        if (shared != null) {
            long value = Long.parseLong(shared.get());
            shared.set(String.valueOf(value + 1));
        }
        if (checked) {
            Thread.yield();
        }
        if (reads) {
            if (counter != before) {
                throw new IllegalStateException("a writer was beside a reader");
            }
            return;
        }
        counter = before + 1;
    }

    /** A thread of one client holds the lock, one of another client sleeps; from the call of unlock to the return of lock. */
    private static String handoff(Peer.Command command) throws Exception {
        String[] clients = command.get("clients").split(",");
        RLock holder = Peer.client(clients[0]).getLock(command.get("name"));
        RLock waiter = Peer.client(clients[1]).getLock(command.get("name"));
        long rounds = command.number("rounds");
        Times times = new Times();
        Semaphore held = new Semaphore(0);
        Semaphore free = new Semaphore(0);
        AtomicLong locked = new AtomicLong();
        counter = 0;
        Threads waiting = new Threads(List.of(() -> {
            for (long n = 0; n < rounds; n++) {
                held.acquire();
                waiter.lock();
                locked.set(System.nanoTime());
                counter = counter + 1;
                waiter.unlock();
                free.release();
            }
        }));
        for (long n = 0; n < rounds; n++) {
            holder.lock();
            held.release();
            Thread.sleep(command.number("asleep"));
            if (counter != n) {
                throw new IllegalStateException("the waiter did not wait");
            }
            long before = System.nanoTime();
            holder.unlock();
            while (!free.tryAcquire(1, TimeUnit.SECONDS)) {
                failIf(waiting.problem);
            }
            times.add(locked.get() - before);
        }
        waiting.join();
        return answer(List.of(times), 0);
    }

    /** This many threads wait for one lock; from the unlock until all had it once. */
    private static String herd(Peer.Command command) throws Exception {
        RLock lock = Peer.client(command.get("clients")).getLock(command.get("name"));
        int waiters = (int) command.number("threads");
        lock.lock();
        CountDownLatch calling = new CountDownLatch(waiters);
        AtomicLong begin = new AtomicLong();
        List<Times> times = new ArrayList<>();
        List<Work> works = new ArrayList<>();
        counter = 0;
        for (int n = 0; n < waiters; n++) {
            Times own = new Times();
            times.add(own);
            works.add(() -> {
                calling.countDown();
                lock.lock();
                own.add(System.nanoTime() - begin.get());
                section(false, null, false);
                lock.unlock();
            });
        }
        Threads all = new Threads(works);
        calling.await();
        all.untilAsleep();
        begin.set(System.nanoTime());
        lock.unlock();
        all.join();
        return answer(times, System.nanoTime() - begin.get());
    }

    /** Acquires this many more locks for one owner, 200 in flight, and keeps them. */
    private static String hold(Peer.Command command) throws Exception {
        RedissonClient client = Peer.client(command.get("clients"));
        Semaphore flight = new Semaphore(200);
        AtomicReference<Throwable> problem = new AtomicReference<>();
        int target = (int) command.number("count");
        long begin = System.nanoTime();
        while (HELD.size() < target) {
            RLock lock = client.getLock(String.format("%s%011d", command.get("name"), HELD.size()));
            HELD.add(lock);
            flight.acquire();
            lock.lockAsync(OWNER).whenComplete((nothing, error) -> done(flight, problem, error));
        }
        flight.acquire(200);
        failIf(problem);
        return String.valueOf(System.nanoTime() - begin);
    }

    private static String release() throws Exception {
        Semaphore flight = new Semaphore(200);
        for (RLock lock : HELD) {
            flight.acquire();
            // What was lost until now has no key any more, and was counted by that.
            lock.unlockAsync(OWNER).whenComplete((nothing, error) -> flight.release());
        }
        flight.acquire(200);
        HELD.clear();
        return "null";
    }

    private static void done(Semaphore flight, AtomicReference<Throwable> problem, Throwable error) {
        if (error != null) {
            problem.set(error);
        }
        flight.release();
    }

    private static void failIf(AtomicReference<Throwable> problem) {
        if (problem.get() != null) {
            throw new IllegalStateException(problem.get());
        }
    }

    /** What is alive after a collection. */
    private static long heap() throws Exception {
        for (int tries = 0; tries < 3; tries++) {
            System.gc();
            Thread.sleep(50);
        }
        Runtime runtime = Runtime.getRuntime();
        return runtime.totalMemory() - runtime.freeMemory();
    }

    private static String answer(List<Times> all, long nanos) {
        StringBuilder counts = new StringBuilder();
        StringBuilder waits = new StringBuilder();
        for (Times times : all) {
            counts.append(counts.length() == 0 ? "" : ",").append(times.size);
            for (int n = 0; n < times.size; n++) {
                waits.append(waits.length() == 0 ? "" : ",").append(times.nanos[n]);
            }
        }
        return "{\"counts\":[" + counts + "],\"waits\":[" + waits + "],\"nanos\":" + nanos
            + ",\"counter\":" + counter + "}";
    }

    private static final long OWNER = 1;

    private interface Work {
        void run() throws Exception;
    }

    /** The times of one thread. */
    private static final class Times {
        long[] nanos = new long[1024];
        int size;

        void add(long time) {
            if (size == nanos.length) {
                nanos = Arrays.copyOf(nanos, 2 * size);
            }
            nanos[size++] = time;
        }
    }

    /** Threads that tell when one of them has failed. */
    private static final class Threads {
        private final List<Thread> threads = new ArrayList<>();
        private final AtomicReference<Throwable> problem = new AtomicReference<>();

        Threads(List<? extends Work> works) {
            for (Work work : works) {
                Thread thread = new Thread(() -> {
                    try {
                        work.run();
                    } catch (Throwable error) {
                        problem.set(error);
                    }
                });
                thread.setDaemon(true);
                threads.add(thread);
                thread.start();
            }
        }

        /** Until all of them wait for an unlock: Redisson counts its permits with a semaphore. */
        void untilAsleep() throws Exception {
            for (Thread thread : threads) {
                while (!waits(thread)) {
                    failIf(problem);
                    Thread.sleep(1);
                }
            }
        }

        private static boolean waits(Thread thread) {
            for (StackTraceElement frame : thread.getStackTrace()) {
                if (frame.getClassName().equals("java.util.concurrent.Semaphore")) {
                    return true;
                }
            }
            return false;
        }

        void join() throws Exception {
            for (Thread thread : threads) {
                // One that has failed may have left the lock to itself: nobody else would ever end.
                while (thread.isAlive()) {
                    failIf(problem);
                    thread.join(100);
                }
            }
            failIf(problem);
        }
    }

    private Bench() {
    }
}
