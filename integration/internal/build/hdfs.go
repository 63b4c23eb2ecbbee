package build

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/drover-run/drover/integration/internal/cache"
	"github.com/drover-run/drover/integration/internal/java"
)

// copyJars is the Maven goal that copies the jars of a pom into a folder; its version is pinned.
const copyJars = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

// HDFS returns the entry with the jars of Apache HDFS (lib), our compiled host program (classes)
// and its settings (conf). Making it takes about 10 s and 45 MB of download.
func HDFS(ctx context.Context, c cache.Dir, p *Progress) (*cache.Entry, error) {
	parts, err := cache.SourcesOf(java.Sources, nil)
	if err != nil {
		return nil, err
	}
	key := cache.KeyOf(append(parts, copyJars)...)
	return c.Get("hdfs", key, func(dir string) error {
		if err := Require(ForHDFS); err != nil {
			return err
		}
		return p.step("jars of Apache HDFS", func() error { return makeHDFS(ctx, dir) })
	})
}

func makeHDFS(ctx context.Context, dir string) error {
	src := filepath.Join(dir, "src")
	if err := os.CopyFS(src, java.Sources); err != nil {
		return err
	}
	if err := fetchJars(ctx, src, dir); err != nil {
		return err
	}
	// The Maven jars contain no web pages; the daemons only require the folders.
	for _, web := range []string{"hdfs", "datanode", "static", "secondary"} {
		if err := os.MkdirAll(filepath.Join(dir, "conf", "webapps", web), 0o755); err != nil {
			return err
		}
	}
	if err := os.Rename(filepath.Join(src, "log4j.properties"), filepath.Join(dir, "conf", "log4j.properties")); err != nil {
		return err
	}
	return compileJava(ctx, src, dir, filepath.Join(dir, "lib", "*"))
}

// fetchJars copies the jars of the pom in src to the entry dir.
func fetchJars(ctx context.Context, src, dir string) error {
	mvn := exec.CommandContext(ctx, "mvn", "-B", "-q", "-Dstyle.color=never", copyJars,
		"-DoutputDirectory="+filepath.Join(dir, "lib"), "-DincludeScope=runtime")
	mvn.Dir = src
	_, err := runCommand(mvn)
	return err
}

// compileJava compiles the sources in src to the entry dir.
func compileJava(ctx context.Context, src, dir, classPath string) error {
	sources, err := filepath.Glob(filepath.Join(src, "*.java"))
	if err != nil {
		return err
	}
	javac := exec.CommandContext(ctx, "javac", append([]string{"-nowarn", "-proc:none",
		"-cp", classPath, "-d", filepath.Join(dir, "classes")}, sources...)...)
	javac.Dir = src
	_, err = runCommand(javac)
	return err
}

// heapMB is the heap of the JVM; it stalled with 128.
const heapMB = 256

// OnlyDaemon returns the option of HostCommand for a JVM with only one daemon: "namenode", or the
// number of a DataNode, from 1.
func OnlyDaemon(name string) string { return "-Ddrover.testbed.daemon=" + name }

// DomainSockets returns the options of HostCommand for DataNodes with domain sockets: native is the
// entry of NativeLibrary, folder is for the sockets.
func DomainSockets(native, folder string) []string {
	return []string{"-Djava.library.path=" + native, "-Ddrover.testbed.sockets=" + folder}
}

// DomainSocket returns the socket of DataNode k in a folder.
func DomainSocket(folder string, k int) string { return filepath.Join(folder, "dn"+strconv.Itoa(k)) }

// HostCommand returns the command line of the host program: a folder for its data, a topology
// table, the NameNode's address, the DataNodes' heartbeat and their addresses. archive is from
// ClassArchive, "" for none; options are for the JVM.
func HostCommand(entry, archive string, options []string, folder, table, nameNode string, heartbeat time.Duration, dataNodes []string) []string {
	if archive != "" {
		options = append(options, "-XX:SharedArchiveFile="+archive)
	}
	// Standard output carries only answers: the JVM's own messages go to standard error. A killed
	// JVM leaves temporary folders behind, so they are in folder.
	argv := append([]string{"java", "-Xmx" + strconv.Itoa(heapMB) + "m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Djava.io.tmpdir=" + folder,
		"-XX:+DisplayVMOutputToStderr", "-Xlog:disable", "-Xlog:all=warning:stderr"}, options...)
	argv = append(argv, "-cp", ClassPath(entry),
		"HdfsHost", folder, table, nameNode, strconv.FormatInt(heartbeat.Milliseconds(), 10),
		strconv.FormatInt(2*heartbeat.Milliseconds(), 10))
	return append(argv, dataNodes...)
}

// ClassPath returns Java's class path of HDFS. Its order is always the same, because an archive of
// classes is valid for only one class path.
func ClassPath(entry string) string {
	jars, _ := filepath.Glob(filepath.Join(entry, "lib", "*.jar")) // the pattern is valid; sorted
	return strings.Join(append(jars, filepath.Join(entry, "classes"), filepath.Join(entry, "conf")), ":")
}

// ClassArchiveFile is the file in the entry of ClassArchive.
const ClassArchiveFile = "classes.jsa"

// ClassArchive returns the entry with the JVM's archive of all classes that HDFS loads at start,
// with which HDFS starts in half the time. It is valid for the jars at their present path; a JVM of
// another version ignores it.
func ClassArchive(ctx context.Context, c cache.Dir, p *Progress, hdfs *cache.Entry) (*cache.Entry, error) {
	return c.Get("classes", cache.KeyOf("1", hdfs.Path), func(dir string) error {
		return p.step("class archive for a fast start of HDFS", func() error { return makeClassArchive(ctx, dir, hdfs.Path) })
	})
}

// trainingLimit limits the run of HDFS that lists the classes it loads.
const trainingLimit = 3 * time.Minute

// makeClassArchive runs HDFS once to list its classes and makes the JVM archive those that are in
// the jars.
func makeClassArchive(ctx context.Context, dir, hdfs string) error {
	ctx, cancel := context.WithTimeout(ctx, trainingLimit)
	defer cancel()
	list, data := filepath.Join(dir, "list"), filepath.Join(dir, "data")
	table, sample := filepath.Join(dir, "table"), filepath.Join(dir, "sample")
	// A random part of loopback's 16 million addresses, to avoid another HDFS.
	base := fmt.Sprintf("127.%d.%d.", 1+rand.IntN(254), rand.IntN(256))
	if err := os.Mkdir(data, 0o755); err != nil {
		return err
	}
	for path, text := range map[string]string{table: base + "11 /r1\n", sample: "sample\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	argv := HostCommand(hdfs, "", []string{"-XX:DumpLoadedClassList=" + list}, data, table, base+"10", time.Second, []string{base + "11"})
	training := exec.CommandContext(ctx, argv[0], argv[1:]...)
	training.Stdin = strings.NewReader("load\t" + sample + "\t/sample\t1048576\t1\n")
	out, err := runCommand(training)
	if err != nil {
		return err
	}
	if want := "ok ready\nok 1 blocks\n"; out != want {
		return fmt.Errorf("HDFS said %q, want %q", out, want)
	}
	var cp string
	for i, a := range argv {
		if a == "-cp" {
			cp, _, _ = strings.Cut(argv[i+1], ":"+filepath.Join(hdfs, "classes")) // jars only, no folders
		}
	}
	dump := exec.CommandContext(ctx, "java", "-Xshare:dump", "-XX:SharedClassListFile="+list,
		"-XX:SharedArchiveFile="+filepath.Join(dir, ClassArchiveFile), "-XX:+UseSerialGC", "-cp", cp)
	if _, err := runCommand(dump); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(data), os.Remove(list), os.Remove(table), os.Remove(sample))
}
