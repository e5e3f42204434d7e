import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import org.redisson.Redisson;
import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * One seller process of the demo in Java: what examples/demo/sell.rs does, with Redisson's RLock.
 *
 * Arguments: address, number of the process, watchdog timeout in milliseconds, buyers. It says "ready", sells until the
 * stock is gone or its input ends, and says "holding" when it is the one to be killed.
 */
public class Seller {
    private static volatile boolean stop;

    public static void main(String[] arguments) throws Exception {
        int number = Integer.parseInt(arguments[1]);
        int buyers = Integer.parseInt(arguments[3]);
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(arguments[2]));
        config.useSingleServer().setAddress(arguments[0]).setConnectionMinimumIdleSize(4).setConnectionPoolSize(24);
        RedissonClient client = Redisson.create(config);
        AtomicBoolean victim = new AtomicBoolean(number == 1);
        AtomicBoolean slow = new AtomicBoolean(number >= 2);
        CountDownLatch done = new CountDownLatch(buyers);
        System.out.println("ready");
        for (int nth = 0; nth < buyers; nth++) {
            Thread buyer = new Thread(() -> {
                buy(client, victim, slow);
                done.countDown();
            });
            buyer.setDaemon(true);
            buyer.start();
        }
        Thread input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (java.io.IOException closed) {
                // The end all the same.
            }
            stop = true;
            try {
                Thread.sleep(1600);
            } catch (InterruptedException enough) {
                // It ends now.
            }
            Runtime.getRuntime().halt(0);
        });
        input.setDaemon(true);
        input.start();
        done.await();
        Runtime.getRuntime().halt(0);
    }

    private static void buy(RedissonClient client, AtomicBoolean victim, AtomicBoolean slow) {
        RLock lock = client.getLock("demo:lock");
        boolean more = true;
        while (more && !stop) {
            lock.lock();
            try {
                more = sale(client, victim, slow);
            } finally {
                lock.unlock();
            }
        }
    }

    /** Reads the stock, thinks, writes the stock: right only if nobody else is in here. */
    private static boolean sale(RedissonClient client, AtomicBoolean victim, AtomicBoolean slow) {
        RBucket<String> bucket = client.getBucket("demo:stock", StringCodec.INSTANCE);
        int stock = Integer.parseInt(bucket.get());
        if (stock <= 0) {
            return false;
        }
        try {
            if (stock < 700 && victim.compareAndSet(true, false)) {
                System.out.println("holding");
                Thread.sleep(60_000);
            }
            if (stock < 400 && slow.compareAndSet(true, false)) {
                Thread.sleep(1300);
            }
        } catch (InterruptedException nobody) {
            throw new IllegalStateException(nobody);
        }
        bucket.set(String.valueOf(stock - 1));
        client.getAtomicLong("demo:sold").incrementAndGet();
        return true;
    }
}
