import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Lock;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * The Java side of {@code cargo xtask demo --kinds}: what crates/demo/src/kinds/queue.rs and report.rs do, with Redisson.
 *
 * Its argument is the address. It says "ready". Then each line of its input is a command, and it ends with its input:
 * "queue NAME" has a thread get the fair lock and note its name; "read THREADS locked|unlocked" has threads read the
 * report until "stop", which is answered by "read READS MIXED MOST"; "write FROM TO" writes these versions, and is
 * answered by "written".
 */
public class Kinds {
    private static final String LOCK = "demo:lock";
    private static final int PARTS = 5;
    private static final List<Thread> READERS = new ArrayList<>();
    private static final AtomicLong READS = new AtomicLong();
    private static final AtomicLong MIXED = new AtomicLong();
    private static final AtomicLong MOST = new AtomicLong();
    private static volatile boolean stop;

    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.useSingleServer().setAddress(arguments[0]).setConnectionMinimumIdleSize(4).setConnectionPoolSize(24);
        RedissonClient client = Redisson.create(config);
        System.out.println("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            perform(client, line.split(" "));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void perform(RedissonClient client, String[] words) throws Exception {
        switch (words[0]) {
            case "queue":
                start(() -> queue(client, words[1]));
                break;
            case "read":
                boolean locked = words[2].equals("locked");
                for (int n = 0; n < Integer.parseInt(words[1]); n++) {
                    READERS.add(start(() -> read(client, locked)));
                }
                break;
            case "write":
                write(client, Long.parseLong(words[1]), Long.parseLong(words[2]));
                System.out.println("written");
                break;
            case "stop":
                stop = true;
                for (Thread reader : READERS) {
                    reader.join();
                }
                System.out.println("read " + READS + " " + MIXED + " " + MOST);
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static void queue(RedissonClient client, String name) {
        RLock lock = client.getFairLock(LOCK);
        lock.lock();
        try {
            client.getList("demo:got", StringCodec.INSTANCE).add(name);
        } finally {
            lock.unlock();
        }
    }

    private static void read(RedissonClient client, boolean locked) {
        Lock lock = client.getReadWriteLock(LOCK).readLock();
        while (!stop) {
            if (locked) {
                lock.lock();
            }
            long begin = System.nanoTime();
            MOST.accumulateAndGet(client.getAtomicLong("demo:reading").incrementAndGet(), Math::max);
            String first = part(client, 1);
            boolean mixed = false;
            for (int n = 2; n <= PARTS; n++) {
                mixed |= !part(client, n).equals(first);
            }
            client.getAtomicLong("demo:reading").decrementAndGet();
            long took = System.nanoTime() - begin;
            if (locked) {
                lock.unlock();
            }
            READS.incrementAndGet();
            MIXED.addAndGet(mixed ? 1 : 0);
            // A writer waits for a moment in which none of them reads.
            pause(5 + 4 * took / 1_000_000);
        }
    }

    private static void write(RedissonClient client, long from, long to) {
        Lock lock = client.getReadWriteLock(LOCK).writeLock();
        for (long version = from; version <= to; version++) {
            lock.lock();
            for (int n = 1; n <= PARTS; n++) {
                client.getBucket("demo:report:" + n, StringCodec.INSTANCE).set(String.valueOf(version));
                pause(2);
            }
            lock.unlock();
            pause(20);
        }
    }

    private static String part(RedissonClient client, int nth) {
        return client.<String>getBucket("demo:report:" + nth, StringCodec.INSTANCE).get();
    }

    private static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException enough) {
            throw new IllegalStateException(enough);
        }
    }

    /** One that fails ends all of it: the other side hears nothing more. */
    private static Thread start(Runnable work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Throwable problem) {
                Runtime.getRuntime().halt(1);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private Kinds() {
    }
}
