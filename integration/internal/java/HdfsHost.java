import java.io.BufferedReader;
import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;

/**
 * The NameNode and the DataNodes of an Apache HDFS in one JVM, or one of them alone, ruled by lines on standard input.
 *
 * <p>Arguments: FOLDER TOPOLOGY-TABLE NAMENODE-IP HEARTBEAT-MS RECHECK-MS DATANODE-IP...
 *
 * <p>The system property {@link #ONLY} names the one daemon that this JVM runs, "namenode" or the number of a DataNode,
 * so that killing the JVM kills that daemon. Without it the JVM runs all. A daemon that is started in the folder of one
 * that was stopped or killed has its data.
 *
 * <p>Each line in is one command, its words separated by tabs; each gets one line out on standard output, which
 * begins with "ok" or "error" (everything Hadoop logs goes to standard error). The first line out is "ok ready".
 * End of input ends the JVM.
 *
 * <pre>
 * stop-datanode K      start-datanode K      (K counts from 1)
 * stop-namenode        start-namenode
 * live                 number of DataNodes that this JVM's NameNode holds for alive, and whether it is in safe mode
 * load LOCAL REMOTE BLOCK-BYTES K,K,...      writes a file with replication 1, block i on DataNode K[i mod n]
 * </pre>
 */
public final class HdfsHost {
  /** System property: the only daemon to run. */
  private static final String ONLY = "drover.testbed.daemon";

  /** System property: the folder of the DataNodes' domain sockets, DataNode k's being dn + k; without it they have none. */
  private static final String SOCKETS = "drover.testbed.sockets";

  private static final int WAIT_LIMIT_MS = 120_000;

  private final Configuration base = new HdfsConfiguration();
  private final String folder;
  private final String nameNodeIp;
  private final List<String> dataNodeIps = new ArrayList<>();
  private final Map<Integer, DataNode> dataNodes = new TreeMap<>();
  private NameNode nameNode;

  private HdfsHost(String[] a) {
    folder = a[0];
    nameNodeIp = a[2];
    for (int i = 5; i < a.length; i++) {
      dataNodeIps.add(a[i]);
    }
    base.set("fs.defaultFS", "hdfs://" + nameNodeIp + ":8020");
    base.set("hadoop.tmp.dir", folder + "/tmp");
    base.set("hadoop.rpc.socket.factory.class.default", SourceAddressFactory.class.getName());
    base.set("net.topology.node.switch.mapping.impl", "org.apache.hadoop.net.TableMapping");
    base.set("net.topology.table.file.name", a[1]);
    base.setInt("ipc.client.connect.max.retries", 1000);
    base.set("dfs.namenode.name.dir", "file://" + folder + "/name");
    base.set("dfs.namenode.rpc-address", nameNodeIp + ":8020");
    base.set("dfs.namenode.http-address", nameNodeIp + ":9870");
    base.setInt("dfs.replication", 2);
    base.setLong("dfs.blocksize", 1 << 20);
    base.setLong("dfs.namenode.fs-limits.min-block-size", 512);
    base.setLong("dfs.namenode.fs-limits.max-blocks-per-file", 1_000_000);
    // No DNS here, so no reverse look-up of a DataNode's address.
    base.setBoolean("dfs.namenode.datanode.registration.ip-hostname-check", false);
    // A DataNode is dead after 10 heartbeats + 2 rechecks.
    base.set("dfs.heartbeat.interval", a[3] + "ms");
    base.set("dfs.namenode.heartbeat.recheck-interval", a[4]);
    base.set("dfs.namenode.stale.datanode.interval", Long.toString(3 * Long.parseLong(a[3])));
    base.set("dfs.namenode.redundancy.interval.seconds", "1s");
    base.setBoolean("dfs.namenode.redundancy.considerLoad", false);
    // How long a closing writer waits before it asks again whether its last block has been reported.
    base.setInt("dfs.client.block.write.locateFollowingBlock.initial.delay.ms", 5);
    base.setInt("dfs.namenode.safemode.extension", 0);
    base.setInt("dfs.namenode.safemode.min.datanodes", 0);
    base.setInt("dfs.namenode.handler.count", 4);
    base.setInt("dfs.datanode.handler.count", 2);
    base.setInt("dfs.datanode.directoryscan.interval", -1);
    base.setLong("dfs.block.scanner.volume.bytes.per.second", 0);
    base.setInt("dfs.blockreport.initialDelay", 0);
    base.setLong("dfs.namenode.resource.du.reserved", 1 << 20);
  }

  public static void main(String[] args) throws Exception {
    PrintStream out = System.out;
    System.setOut(System.err); // the protocol alone may use standard output
    HdfsHost h = new HdfsHost(args);
    DefaultMetricsSystem.setMiniClusterMode(true); // several daemons register the same metrics names
    h.start(System.getProperty(ONLY, ""));
    out.println("ok ready");
    out.flush();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String answer;
      try {
        answer = "ok " + h.command(line.split("\t"));
      } catch (Exception e) {
        answer = "error " + e.toString().replaceAll("\\s+", " ");
      }
      out.println(answer.trim());
      out.flush();
    }
    System.exit(0);
  }

  /** Starts the daemons of this JVM; one that runs all awaits that the DataNodes are registered. */
  private void start(String only) throws Exception {
    switch (only) {
      case "":
        startNameNode();
        for (int k = 1; k <= dataNodeIps.size(); k++) {
          startDataNode(k);
        }
        awaitLive(dataNodeIps.size());
        break;
      case "namenode":
        startNameNode();
        break;
      default:
        startDataNode(index(only));
    }
  }

  private String command(String[] w) throws Exception {
    switch (w[0]) {
      case "stop-datanode":
        DataNode d = dataNodes.remove(index(w[1]));
        if (d == null) {
          return "not running";
        }
        d.shutdown();
        return "";
      case "start-datanode":
        int k = index(w[1]);
        if (dataNodes.containsKey(k)) {
          return "running already";
        }
        startDataNode(k);
        return "";
      case "stop-namenode":
        if (nameNode == null) {
          return "not running";
        }
        nameNode.stop();
        nameNode.join();
        nameNode = null;
        return "";
      case "start-namenode":
        if (nameNode != null) {
          return "running already";
        }
        startNameNode();
        return "";
      case "live":
        if (nameNode == null) {
          return "0 down";
        }
        return nameNode.getNamesystem().getNumLiveDataNodes() + (nameNode.isInSafeMode() ? " safemode" : " normal");
      case "load":
        return load(w[1], w[2], Integer.parseInt(w[3]), w[4].split(","));
      default:
        throw new IllegalArgumentException("unknown command " + w[0]);
    }
  }

  private int index(String word) {
    int k = Integer.parseInt(word);
    if (k < 1 || k > dataNodeIps.size()) {
      throw new IllegalArgumentException("there is no DataNode " + k + ", they count from 1 to " + dataNodeIps.size());
    }
    return k;
  }

  private void startNameNode() throws IOException {
    if (!new File(folder + "/name/current/VERSION").exists()) {
      NameNode.format(base);
    }
    nameNode = NameNode.createNameNode(new String[0], new Configuration(base));
  }

  private void startDataNode(int k) throws IOException {
    Configuration c = new Configuration(base);
    String ip = dataNodeIps.get(k - 1);
    c.set(SourceAddressFactory.KEY, ip);
    c.set("dfs.datanode.hostname", ip);
    c.set("dfs.datanode.address", ip + ":9866");
    c.set("dfs.datanode.ipc.address", ip + ":9867");
    c.set("dfs.datanode.http.address", ip + ":9864");
    c.set("dfs.datanode.data.dir", "file://" + folder + "/datanode" + k);
    String sockets = System.getProperty(SOCKETS);
    if (sockets != null) { // needs Hadoop's native library
      c.setBoolean("dfs.client.read.shortcircuit", true);
      c.set("dfs.domain.socket.path", sockets + "/dn" + k);
    }
    DataNode d = DataNode.instantiateDataNode(new String[0], c);
    d.runDatanodeDaemon();
    dataNodes.put(k, d);
  }

  private void awaitLive(int n) throws Exception {
    long end = System.currentTimeMillis() + WAIT_LIMIT_MS;
    while (nameNode.getNamesystem().getNumLiveDataNodes() < n || nameNode.isInSafeMode()) {
      if (System.currentTimeMillis() > end) {
        throw new IOException("only " + nameNode.getNamesystem().getNumLiveDataNodes() + " of " + n
            + " DataNodes registered in " + WAIT_LIMIT_MS / 1000 + " s");
      }
      Thread.sleep(20);
    }
  }

  /** Writes block by block, each opened with its own favoured DataNode, and checks where the blocks went. */
  private String load(String local, String remote, int blockBytes, String[] places) throws Exception {
    Path path = new Path(remote);
    byte[] block = new byte[blockBytes];
    long blocks = 0;
    try (DistributedFileSystem fs =
            (DistributedFileSystem) FileSystem.newInstance(URI.create(base.get("fs.defaultFS")), base);
        InputStream in = new FileInputStream(local)) {
      fs.mkdirs(path.getParent());
      for (int n = fill(in, block); n > 0 || blocks == 0; n = fill(in, block)) {
        InetSocketAddress[] favoured = {new InetSocketAddress(place(places, blocks), 9866)};
        try (OutputStream o = blocks == 0
            ? fs.create(path, FsPermission.getFileDefault(), false, 65536, (short) 1, blockBytes, null, favoured)
            : fs.append(path, EnumSet.of(CreateFlag.APPEND, CreateFlag.NEW_BLOCK), 65536, null, favoured)) {
          o.write(block, 0, n);
        }
        blocks++;
        if (n < blockBytes) {
          break;
        }
      }
      checkPlaces(fs, path, places);
    }
    return blocks + " blocks";
  }

  private String place(String[] places, long block) {
    return dataNodeIps.get(index(places[(int) (block % places.length)]) - 1);
  }

  private void checkPlaces(DistributedFileSystem fs, Path path, String[] places) throws IOException {
    long i = 0;
    for (BlockLocation b : fs.getFileBlockLocations(path, 0, Long.MAX_VALUE)) {
      String want = place(places, i) + ":9866";
      if (b.getNames().length != 1 || !b.getNames()[0].equals(want)) {
        throw new IOException("block " + i + " of " + path + " is on " + String.join(",", b.getNames())
            + " instead of " + want + "; is that DataNode running and not full?");
      }
      i++;
    }
  }

  /** Reads until the buffer is full or the file ends; returns the number of bytes read. */
  private static int fill(InputStream in, byte[] b) throws IOException {
    int n = 0;
    while (n < b.length) {
      int r = in.read(b, n, b.length - n);
      if (r < 0) {
        break;
      }
      n += r;
    }
    return n;
  }
}
