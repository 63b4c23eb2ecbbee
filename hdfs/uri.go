package hdfs

import (
	"fmt"
	"net/url"
	"path"
	"strings"
)

// Scheme says which kind of file system a URI is of.
type Scheme int

// The schemes.
const (
	SchemeHDFS  Scheme = 1 // hdfs://host:port/path, hdfs:///path
	SchemeLocal Scheme = 2 // file:///path
)

func (s Scheme) String() string {
	switch s {
	case SchemeHDFS:
		return "hdfs"
	case SchemeLocal:
		return "file"
	default:
		return fmt.Sprintf("scheme(%d)", int(s))
	}
}

// URI is an input or output as a job file names it.
type URI struct {
	Scheme Scheme
	// Authority is host:port of the NameNode, or a name that the
	// configuration resolves; empty means the configured default.
	Authority string
	Path      string // absolute, clean; may hold glob characters
}

func (u URI) String() string { return u.Scheme.String() + "://" + u.Authority + u.Path }

// ParseURI takes a URI apart. It takes hdfs://host:port/path, hdfs:///path and
// file:///path. Characters after the authority stand for themselves: '?', '#'
// and '%' are no query, fragment or escape, because they are glob characters
// or parts of names.
func ParseURI(raw string) (URI, error) {
	bad := func(format string, args ...any) (URI, error) {
		return URI{}, fmt.Errorf("%w: %q: %s; write hdfs:///path, hdfs://host:port/path or file:///path",
			ErrInvalid, raw, fmt.Sprintf(format, args...))
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return bad("has no scheme")
	}
	authority, name := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, name = rest[:i], rest[i:]
	}
	if name == "" {
		return bad("has no absolute path")
	}
	u := URI{Authority: authority}
	switch strings.ToLower(scheme) {
	case "hdfs":
		u.Scheme = SchemeHDFS
	case "file":
		u.Scheme = SchemeLocal
	default:
		return bad("scheme %q is unknown", scheme)
	}
	if u.Scheme == SchemeLocal && authority != "" {
		return bad("a local file names no host, but this one names %q (is a slash missing?)", authority)
	}
	if authority != "" {
		full, err := parseAuthority(authority)
		if err != nil {
			return bad("%s", err)
		}
		u.Authority = full
	}
	clean, err := CleanPath(name)
	if err != nil {
		return bad("%s", err)
	}
	u.Path = clean
	return u, nil
}

// parseAuthority checks host:port, or a bare name that the configuration
// resolves (a host without a port, or an HA name service).
func parseAuthority(authority string) (string, error) {
	u, err := url.Parse("hdfs://" + authority)
	if err != nil || u.Hostname() == "" || u.User != nil || u.Host != authority {
		return "", fmt.Errorf("%q is not host:port", authority)
	}
	if strings.HasSuffix(authority, ":") {
		return "", fmt.Errorf("%q lacks the port after the colon", authority)
	}
	return authority, nil
}

// maxPathBytes is above what HDFS allows (8,000 characters of up to 4 bytes).
const maxPathBytes = 32000

// CleanPath gives the one spelling of an absolute path: no empty, "." or
// trailing parts. A ".." is refused rather than resolved, as HDFS does.
func CleanPath(p string) (string, error) {
	switch {
	case !strings.HasPrefix(p, "/"):
		return "", fmt.Errorf("%w: path %q is not absolute", ErrInvalid, p)
	case len(p) > maxPathBytes:
		return "", fmt.Errorf("%w: path of %d bytes is longer than %d", ErrInvalid, len(p), maxPathBytes)
	case strings.IndexByte(p, 0) >= 0:
		return "", fmt.Errorf("%w: path %q holds a zero byte", ErrInvalid, p)
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return "", fmt.Errorf("%w: path %q goes up with ..", ErrInvalid, p)
		}
	}
	return path.Clean(p), nil
}

// Within reports whether p is dir or lies below it. Both are clean.
func Within(p, dir string) bool {
	if dir == "/" || p == dir {
		return true
	}
	return strings.HasPrefix(p, dir) && p[len(dir)] == '/'
}
