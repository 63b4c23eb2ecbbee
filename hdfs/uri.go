package hdfs

import (
	"fmt"
	"net/url"
	"path"
	"strings"
)

// Scheme is the scheme of a URI.
type Scheme int

// The schemes of URIs.
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

// URI is an input or output named in a job file.
type URI struct {
	Scheme Scheme
	// Authority is host:port of the NameNode, or a name service that the
	// configuration resolves; empty: the configured default.
	Authority string
	Path      string // absolute, clean; may contain glob characters
}

func (u URI) String() string { return u.Scheme.String() + "://" + u.Authority + u.Path }

// ParseURI parses hdfs://host:port/path, hdfs:///path and file:///path. Characters
// after the authority are literal: '?', '#' and '%' do not start a query, fragment
// or escape, because they are glob characters or parts of names.
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

// parseAuthority checks host:port, or a bare name (a host without a port, or an HA
// name service) that the configuration resolves.
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

// maxPathBytes exceeds HDFS's limit (8,000 characters of up to 4 bytes).
const maxPathBytes = 32000

// CleanPath returns the canonical form of an absolute path, without empty, "." or
// trailing components. ".." is an error rather than resolved, as in HDFS.
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

// IsWithin reports whether p is dir or below it. Both must be clean.
func IsWithin(p, dir string) bool {
	if dir == "/" || p == dir {
		return true
	}
	return strings.HasPrefix(p, dir) && p[len(dir)] == '/'
}
