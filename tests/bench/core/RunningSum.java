import java.nio.ByteBuffer;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

/**
 * Kafka Streams' side of the bench: the sum of each key's last values, for each value as soon as there are enough.
 *
 * A key's entry in the state store holds the number of its values so far, their sum, and the values. So a value costs
 * one get, one put and two additions. All settings are the defaults (at least once, one thread, a changelog).
 *
 * Arguments: servers, input topic, output topic, application id, state directory, window, store (persistent, memory),
 * cache (cached, uncached).
 */
public final class RunningSum {
    private static final int HEAD = 2 * Long.BYTES;

    public static void main(String[] arguments) throws Exception {
        int window = Integer.parseInt(arguments[5]);
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[3]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[4]);
        settings.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        KeyValueBytesStoreSupplier kept =
            arguments[6].equals("memory") ? Stores.inMemoryKeyValueStore("last") : Stores.persistentKeyValueStore("last");
        StoreBuilder<KeyValueStore<Integer, byte[]>> store =
            Stores.keyValueStoreBuilder(kept, Serdes.Integer(), Serdes.ByteArray());
        builder.addStateStore(arguments[7].equals("cached") ? store.withCachingEnabled() : store);
        builder.stream(arguments[1], Consumed.with(Serdes.Integer(), Serdes.Double()))
            .process(() -> new Sum(window), "last")
            .to(arguments[2], Produced.with(Serdes.Integer(), Serdes.Double()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((now, before) -> System.out.println(now));
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
        Thread.currentThread().join();
    }

    private static final class Sum implements Processor<Integer, Double, Integer, Double> {
        private final int window;
        private ProcessorContext<Integer, Double> context;
        private KeyValueStore<Integer, byte[]> last;

        Sum(int window) {
            this.window = window;
        }

        @Override
        public void init(ProcessorContext<Integer, Double> given) {
            context = given;
            last = given.getStateStore("last");
        }

        @Override
        public void process(Record<Integer, Double> record) {
            byte[] found = last.get(record.key());
            byte[] entry = found == null ? new byte[HEAD + window * Double.BYTES] : found.clone();
            ByteBuffer state = ByteBuffer.wrap(entry);
            long seen = state.getLong(0);
            int place = HEAD + (int) (seen % window) * Double.BYTES;
            double sum = state.getDouble(Long.BYTES) + record.value() - state.getDouble(place);
            state.putLong(0, seen + 1);
            state.putDouble(Long.BYTES, sum);
            state.putDouble(place, record.value());
            last.put(record.key(), entry);
            if (seen + 1 >= window) {
                context.forward(record.withValue(sum));
            }
        }
    }
}
