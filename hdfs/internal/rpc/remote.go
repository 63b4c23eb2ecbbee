package rpc

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/drover-run/drover/hdfs"
)

// RemoteError is an exception of the server. errors.Is finds its class. It is immutable, because
// calls that share a connection may share it.
type RemoteError struct {
	Class   string // Java class name
	message string // first line
}

func (e *RemoteError) Error() string {
	message := e.message
	// The server often repeats the class at the start of the message.
	message = strings.TrimPrefix(message, e.Class+": ")
	return fmt.Sprintf("%s: %s", e.Class[strings.LastIndexByte(e.Class, '.')+1:], message)
}

// errorClasses maps Java exceptions to error classes.
var errorClasses = map[string]error{
	"java.io.FileNotFoundException":                                                  hdfs.ErrNotExist,
	"org.apache.hadoop.fs.FileAlreadyExistsException":                                hdfs.ErrExist,
	"org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException":                   hdfs.ErrExist,
	"org.apache.hadoop.fs.ParentNotDirectoryException":                               hdfs.ErrNotDirectory,
	"org.apache.hadoop.fs.PathIsNotDirectoryException":                               hdfs.ErrNotDirectory,
	"org.apache.hadoop.security.AccessControlException":                              hdfs.ErrPermission,
	"org.apache.hadoop.security.authorize.AuthorizationException":                    hdfs.ErrPermission,
	"org.apache.hadoop.ipc.StandbyException":                                         hdfs.ErrStandby,
	"org.apache.hadoop.ipc.ObserverRetryOnActiveException":                           hdfs.ErrStandby,
	"org.apache.hadoop.hdfs.server.namenode.SafeModeException":                       hdfs.ErrSafeMode,
	"org.apache.hadoop.ipc.RetriableException":                                       hdfs.ErrUnavailable,
	"org.apache.hadoop.ipc.RpcServerException":                                       hdfs.ErrUnavailable,
	"org.apache.hadoop.hdfs.server.namenode.NotReplicatedYetException":               hdfs.ErrUnavailable,
	"org.apache.hadoop.hdfs.protocol.NotReplicatedYetException":                      hdfs.ErrUnavailable,
	"org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException":                   hdfs.ErrChanged,
	"org.apache.hadoop.hdfs.protocol.NSQuotaExceededException":                       hdfs.ErrQuota,
	"org.apache.hadoop.hdfs.protocol.DSQuotaExceededException":                       hdfs.ErrQuota,
	"org.apache.hadoop.hdfs.protocol.QuotaExceededException":                         hdfs.ErrQuota,
	"org.apache.hadoop.hdfs.protocol.QuotaByStorageTypeExceededException":            hdfs.ErrQuota,
	"org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException": hdfs.ErrInvalid,
	"org.apache.hadoop.fs.InvalidPathException":                                      hdfs.ErrInvalid,
	"org.apache.hadoop.HadoopIllegalArgumentException":                               hdfs.ErrInvalid,
	"java.lang.IllegalArgumentException":                                             hdfs.ErrInvalid,
	"org.apache.hadoop.hdfs.protocol.UnresolvedPathException":                        hdfs.ErrUnsupported,
	"org.apache.hadoop.hdfs.UnknownCryptoProtocolVersionException":                   hdfs.ErrUnsupported, // create in an encryption zone
	"org.apache.hadoop.ipc.RpcNoSuchMethodException":                                 hdfs.ErrUnsupported,
	"org.apache.hadoop.ipc.RpcNoSuchProtocolException":                               hdfs.ErrUnsupported,
	"java.lang.UnsupportedOperationException":                                        hdfs.ErrUnsupported,
}

// Unwrap returns the error class, or nil for a momentary exception without a class.
func (e *RemoteError) Unwrap() error {
	class := errorClasses[e.Class]
	switch {
	case class == hdfs.ErrUnavailable && strings.Contains(e.message, "SafeModeException"):
		return hdfs.ErrSafeMode // wrapped in a RetriableException in an HA cluster
	case class != nil:
		return class
	case strings.Contains(e.message, "could only be written to"), strings.Contains(e.message, "could only be replicated to"):
		return ErrTooFewNodes // the server sends a plain IOException; the second text is Hadoop 2's
	case strings.HasPrefix(e.Class, "org.apache.hadoop.hdfs.protocol.FSLimitException$"):
		return hdfs.ErrQuota
	case e.isOfTheMoment():
		return nil
	}
	return hdfs.ErrRefused
}

// momentary lists prefixes of the names of exceptions that concern the server and not the request:
// the server was interrupted, is damaged, or cannot reach another server.
var momentary = []string{
	"java.io.EOFException", "java.io.InterruptedIOException", "java.lang.", "java.net.", "java.nio.", "java.util.",
	"org.apache.hadoop.ha.", "org.apache.hadoop.hdfs.protocol.RecoveryInProgressException", "org.apache.hadoop.hdfs.qjournal.",
	"org.apache.hadoop.hdfs.server.", "org.apache.hadoop.ipc.", "org.apache.hadoop.net.", "org.apache.hadoop.security.token.",
}

// isOfTheMoment reports whether the same request may succeed later. A router in front of several
// NameNodes sends plain IOExceptions while it reaches none of them.
func (e *RemoteError) isOfTheMoment() bool {
	return e.Class == "" || strings.Contains(e.message, "No namenode available") ||
		slices.ContainsFunc(momentary, func(prefix string) bool { return strings.HasPrefix(e.Class, prefix) })
}

// ErrTooFewNodes: addBlock found no DataNode for a block. It is an ErrUnavailable
// for which Call does not wait, because the caller may have excluded the nodes
// itself.
var ErrTooFewNodes error = tooFewNodesError{}

type tooFewNodesError struct{}

func (tooFewNodesError) Error() string        { return "too few DataNodes" }
func (tooFewNodesError) Is(target error) bool { return target == hdfs.ErrUnavailable }

// shortReason returns a few words for a WaitNotice.
func shortReason(err error) string {
	switch {
	case err == nil:
		return "starting"
	case errors.Is(err, hdfs.ErrSafeMode):
		return "safe mode"
	case errors.Is(err, hdfs.ErrStandby):
		return "standby"
	}
	text := err.Error()
	for _, known := range []string{"connection refused", "connection reset", "no route to host", "i/o timeout", "EOF", "deadline exceeded"} {
		if strings.Contains(text, known) {
			return known
		}
	}
	return text[:min(len(text), 120)]
}
