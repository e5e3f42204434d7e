import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.RedissonMultiLock;
import org.redisson.RedissonRedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

/**
 * A Redisson client that takes commands as lines and answers as JSON lines.
 *
 * A command is {@code id verb key=value ...}, its values percent-encoded. Commands with {@code worker=N} run one after
 * the other on the thread of that worker; all others run on a thread of their own. The answer is
 * {@code {"id":1,"value":...}} or {@code {"id":1,"error":"...","kind":"..."}}, in the order in which calls return.
 */
public class Peer {
    private static final Map<String, RedissonClient> CLIENTS = new ConcurrentHashMap<>();
    private static final Map<String, ExecutorService> WORKERS = new ConcurrentHashMap<>();
    private static final Map<String, Thread> THREADS = new ConcurrentHashMap<>();
    private static final Map<String, RLock> LOCKS = new ConcurrentHashMap<>();
    private static final ExecutorService LOOSE = Executors.newCachedThreadPool(Peer::daemon);

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        answer("0", "\"ready\"");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Command command = new Command(line);
            executor(command).execute(() -> run(command));
        }
        // The other side is gone: so is this one, without giving anything back.
        Runtime.getRuntime().halt(0);
    }

    private static ExecutorService executor(Command command) {
        String worker = command.values.get("worker");
        if (worker == null) {
            return LOOSE;
        }
        String name = command.get("client") + " " + worker;
        return WORKERS.computeIfAbsent(name, any -> Executors.newSingleThreadExecutor(work -> {
            Thread thread = daemon(work);
            THREADS.put(name, thread);
            return thread;
        }));
    }

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    }

    private static void run(Command command) {
        try {
            answer(command.id, perform(command));
        } catch (Throwable problem) {
            Throwable cause = problem;
            while (cause.getCause() != null && cause.getCause() != cause) {
                cause = cause.getCause();
            }
            System.out.println("{\"id\":" + command.id + ",\"error\":" + quoted(String.valueOf(cause.getMessage()))
                + ",\"kind\":" + quoted(cause.getClass().getSimpleName()) + "}");
        }
    }

    private static String perform(Command command) throws Exception {
        switch (command.verb) {
            case "open":
                return open(command);
            case "close":
                client(command).shutdown();
                forget(command.get("client"));
                return "null";
            case "die":
                // As a crash: nothing is released, no socket is closed in order.
                Runtime.getRuntime().halt(9);
                return "null";
            case "interrupt":
                waiting(command).interrupt();
                return "null";
            case "sleeps":
                waiting(command);
                return "null";
            case "bench":
                return Bench.run(command);
            default:
                return onLock(command, lock(command));
        }
    }

    private static String open(Command command) throws Exception {
        Config config = new Config();
        config.setLockWatchdogTimeout(command.number("watchdog"));
        if (command.values.containsKey("defaults")) {
            config.useSingleServer().setAddress(command.get("address"));
            CLIENTS.put(command.get("client"), Redisson.create(config));
            return "null";
        }
        if (command.values.containsKey("sentinel")) {
            // Before 3.15 the list of sentinels cannot be left unchecked, and has to be complete.
            config.useSentinelServers()
                .setMasterName(command.get("sentinel"))
                .addSentinelAddress(command.get("address").split(" "))
                .setMasterConnectionMinimumIdleSize(2)
                .setMasterConnectionPoolSize(24)
                .setSubscriptionConnectionMinimumIdleSize(1);
        } else if (command.values.containsKey("cluster")) {
            config.useClusterServers()
                .addNodeAddress(command.get("address"))
                .setMasterConnectionMinimumIdleSize(2)
                .setMasterConnectionPoolSize(24)
                .setSubscriptionConnectionMinimumIdleSize(1);
        } else {
            SingleServerConfig server = config.useSingleServer()
                .setAddress(command.get("address"))
                .setConnectionMinimumIdleSize(2)
                .setConnectionPoolSize(24)
                .setSubscriptionConnectionMinimumIdleSize(1);
            if (command.values.containsKey("prefix")) {
                mapNames(server, command.get("prefix"));
            }
            if (command.values.containsKey("channels")) {
                server.setSubscriptionConnectionPoolSize(1).setSubscriptionsPerConnection((int) command.number("channels"));
            }
        }
        config.setThreads(4);
        config.setNettyThreads(4);
        RedissonClient client = Redisson.create(config);
        CLIENTS.put(command.get("client"), client);
        return "null";
    }

    /** The type of a name mapper has another package since 4.0. */
    private static void mapNames(SingleServerConfig server, String prefix) throws Exception {
        for (Method method : SingleServerConfig.class.getMethods()) {
            if (method.getName().equals("setNameMapper") && !method.isBridge()) {
                Class<?> mapper = method.getParameterTypes()[0];
                method.invoke(server, Proxy.newProxyInstance(mapper.getClassLoader(), new Class<?>[] {mapper}, (proxy, called, values) ->
                    called.getName().equals("map") ? prefix + values[0] : ((String) values[0]).substring(prefix.length())));
                return;
            }
        }
        throw new IllegalStateException("it has no name mapper");
    }

    /** The thread of a worker, not before it waits for an unlock: Redisson counts its permits with a semaphore. */
    private static Thread waiting(Command command) throws Exception {
        Thread thread = THREADS.get(command.get("client") + " " + command.get("target"));
        for (int tries = 0; tries < 2_000; tries++) {
            for (StackTraceElement frame : thread.getStackTrace()) {
                boolean waits = frame.getClassName().equals("java.util.concurrent.Semaphore");
                if (waits && thread.getState() != Thread.State.RUNNABLE) {
                    return thread;
                }
            }
            Thread.sleep(5);
        }
        throw new IllegalStateException("it does not wait");
    }

    /** A lock keeps its client, and a client much memory. */
    private static void forget(String client) {
        CLIENTS.remove(client);
        LOCKS.keySet().removeIf(name -> name.contains(client + " ") || name.contains(client + ","));
        THREADS.keySet().removeIf(name -> name.startsWith(client + " "));
        WORKERS.entrySet().removeIf(worker -> {
            boolean is = worker.getKey().startsWith(client + " ");
            if (is) {
                worker.getValue().shutdown();
            }
            return is;
        });
    }

    private static RedissonClient client(Command command) {
        return client(command.get("client"));
    }

    static RedissonClient client(String name) {
        RedissonClient client = CLIENTS.get(name);
        if (client == null) {
            throw new IllegalArgumentException("no such client");
        }
        return client;
    }

    /** One object for each name: it remembers the lease that it was last given. */
    private static RLock lock(Command command) {
        String name = command.get("name");
        String joint = command.values.get("joint");
        if (joint != null) {
            String clients = command.get("clients");
            return LOCKS.computeIfAbsent(joint + " " + clients + " " + name, any -> joint(joint, clients.split(","), name));
        }
        return LOCKS.computeIfAbsent(command.get("client") + " " + name, any -> lock(client(command), name));
    }

    /** The locks of this name of all these clients as one, or a quorum of them. */
    private static RLock joint(String joint, String[] clients, String name) {
        RLock[] members = new RLock[clients.length];
        for (int n = 0; n < clients.length; n++) {
            members[n] = client(clients[n]).getLock(name);
        }
        // Before 3.12 they are no RLock, but have these methods of one.
        Object lock = joint.equals("red") ? new RedissonRedLock(members) : new RedissonMultiLock(members);
        return (RLock) Proxy.newProxyInstance(RLock.class.getClassLoader(), new Class<?>[] {RLock.class}, (proxy, method, values) ->
            lock.getClass().getMethod(method.getName(), method.getParameterTypes()).invoke(lock, values));
    }

    /** The name begins with the kind. Old versions have not all of them. Both locks of a read-write lock have one name. */
    private static RLock lock(RedissonClient client, String name) {
        if (name.startsWith("read/")) {
            return client.getReadWriteLock(name.substring("read/".length())).readLock();
        }
        if (name.startsWith("write/")) {
            return client.getReadWriteLock(name.substring("write/".length())).writeLock();
        }
        if (name.startsWith("fair/")) {
            return client.getFairLock(name);
        }
        String method = name.startsWith("fenced/") ? "getFencedLock" : name.startsWith("spin/") ? "getSpinLock" : "getLock";
        try {
            return (RLock) RedissonClient.class.getMethod(method, String.class).invoke(client, name);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    /** To test the tests: one worker in four only says that it locks. */
    private static boolean skips(Command command) {
        return System.getenv("PEER_SKIPS") != null && command.number("worker") % 4 == 3;
    }

    private static String onLock(Command command, RLock lock) throws Exception {
        if (skips(command)) {
            return command.verb.equals("trylock") ? "true" : "null";
        }
        long wait = command.number("wait");
        long lease = command.number("lease");
        long thread = command.number("thread");
        if (command.values.containsKey("interrupted")) {
            Thread.currentThread().interrupt();
        }
        switch (command.verb) {
            case "lock":
                if (lease < 0) {
                    lock.lock();
                } else {
                    lock.lock(lease, TimeUnit.MILLISECONDS);
                }
                return "null";
            case "trylock":
                // Without a wait it is one attempt.
                return String.valueOf(wait < 0 && lease < 0
                    ? lock.tryLock()
                    : lock.tryLock(Math.max(wait, 0), lease, TimeUnit.MILLISECONDS));
            case "unlock":
                lock.unlock();
                return "null";
            case "forceunlock":
                return byName(lock, "forceUnlock");
            case "islocked":
                return String.valueOf(lock.isLocked());
            case "isheld":
                return String.valueOf(lock.isHeldByCurrentThread());
            case "isheldbythread":
                return String.valueOf(RLock.class.getMethod("isHeldByThread", long.class).invoke(lock, thread));
            case "holdcount":
                return String.valueOf(lock.getHoldCount());
            case "ttl":
                return byName(lock, "remainTimeToLive");
            case "lockasync":
                await(() -> lease < 0
                    ? lock.lockAsync(thread).get()
                    : lock.lockAsync(lease, TimeUnit.MILLISECONDS, thread).get());
                return "null";
            case "trylockasync":
                return String.valueOf(await(() -> lock.tryLockAsync(Math.max(wait, 0), lease, TimeUnit.MILLISECONDS, thread).get()));
            case "unlockasync":
                await(() -> lock.unlockAsync(thread).get());
                return "null";
            default:
                throw new IllegalArgumentException("no such verb: " + command.verb);
        }
    }

    /** For methods whose result type, or whose declaring type, is not the same in all versions. */
    private static String byName(RLock lock, String method) throws Exception {
        return String.valueOf(RLock.class.getMethod(method).invoke(lock));
    }

    private static <T> T await(Callable<T> work) throws Exception {
        return work.call();
    }

    private static void answer(String id, String value) {
        System.out.println("{\"id\":" + id + ",\"value\":" + value + "}");
    }

    private static String quoted(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char c : String.valueOf(text).toCharArray()) {
            if (c == '"' || c == '\\' || c < ' ') {
                quoted.append(String.format("\\u%04x", (int) c));
            } else {
                quoted.append(c);
            }
        }
        return quoted.append('"').toString();
    }

    /** One line of input. */
    static class Command {
        final String id;
        final String verb;
        final Map<String, String> values = new HashMap<>();

        Command(String line) {
            String[] words = line.split(" ");
            id = words[0];
            verb = words[1];
            for (int n = 2; n < words.length; n++) {
                String[] pair = words[n].split("=", 2);
                values.put(pair[0], URLDecoder.decode(pair[1], StandardCharsets.UTF_8));
            }
        }

        String get(String key) {
            String value = values.get(key);
            if (value == null) {
                throw new IllegalArgumentException(verb + " needs " + key);
            }
            return value;
        }

        long number(String key) {
            return Long.parseLong(values.getOrDefault(key, "-1"));
        }
    }
}
