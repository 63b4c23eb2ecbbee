import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.channels.SocketChannel;
import javax.net.SocketFactory;
import org.apache.hadoop.conf.Configurable;
import org.apache.hadoop.conf.Configuration;

/**
 * Makes Hadoop RPC client sockets that leave from one given address.
 *
 * <p>A NameNode registers a DataNode under the source address of its connection, not under the address that the
 * DataNode was configured with. Several DataNodes on one host would therefore evict each other; with this factory
 * each connects from its own address.
 */
public final class SourceAddressFactory extends SocketFactory implements Configurable {
  /** Configuration key: the address to leave from; absent means any. */
  static final String KEY = "drover.testbed.source.address";

  private Configuration conf;
  private String source = "";

  @Override
  public void setConf(Configuration c) {
    conf = c;
    source = c == null ? "" : c.get(KEY, "");
  }

  @Override
  public Configuration getConf() {
    return conf;
  }

  @Override
  public Socket createSocket() throws IOException {
    Socket s = SocketChannel.open().socket();
    if (!source.isEmpty()) {
      s.bind(new InetSocketAddress(source, 0));
    }
    return s;
  }

  private Socket connect(InetSocketAddress to) throws IOException {
    Socket s = createSocket();
    s.connect(to);
    return s;
  }

  @Override
  public Socket createSocket(InetAddress host, int port) throws IOException {
    return connect(new InetSocketAddress(host, port));
  }

  @Override
  public Socket createSocket(InetAddress host, int port, InetAddress local, int localPort) throws IOException {
    return connect(new InetSocketAddress(host, port));
  }

  @Override
  public Socket createSocket(String host, int port) throws IOException {
    return connect(new InetSocketAddress(host, port));
  }

  @Override
  public Socket createSocket(String host, int port, InetAddress local, int localPort) throws IOException {
    return connect(new InetSocketAddress(host, port));
  }

  /** Hadoop shares RPC connections between equal factories, so factories are equal only if their source is. */
  @Override
  public boolean equals(Object o) {
    return o instanceof SourceAddressFactory && ((SourceAddressFactory) o).source.equals(source);
  }

  @Override
  public int hashCode() {
    return source.hashCode();
  }
}
