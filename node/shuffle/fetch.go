package shuffle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/unixhttp"
	"github.com/drover-run/drover/mapreduce"
)

// Client fetches partitions.
type Client struct {
	HTTP   *http.Client // its transport bounds dialling and waiting for headers
	Scheme string       // http or https
	Token  string       // of the job
	// stallLimit bounds the time without a byte; 0 = 30 s.
	stallLimit time.Duration
}

// Fetched describes a partition that is complete and verified in a file.
type Fetched struct {
	Path  string // of the file
	Codec mapreduce.Codec
	Range mapreduce.PartitionRange // as in its map output; in the file the offset is 0
}

// Busy is the cause of an Unavailable error of a node that already serves as many requests as it
// may. The node is up, and may have the output.
type Busy struct {
	Pause time.Duration // that the node asks for
}

func (b *Busy) Error() string { return "it is busy" }

// maxBusyPause bounds the pause that a node may request.
const maxBusyPause = 30 * time.Second

// busy reads the pause from the response of a busy node; it is at least a second.
func busy(h http.Header) *Busy {
	seconds, _ := strconv.ParseInt(h.Get("Retry-After"), 10, 32)
	return &Busy{min(max(time.Duration(seconds)*time.Second, time.Second), maxBusyPause)}
}

// linkSuffix is added to the path of a partition that is a link to its map output. The path itself
// must never be a link, because files there are appended to, and truncated if they are damaged.
const linkSuffix = ".link"

// Fetch fetches one partition into the file at path, resuming at the end of the
// file. A map output of this machine that is a single partition is not copied where a link does, at
// path with linkSuffix. Errors: NotFound, the node does not have it; Corrupt, the bytes do not
// match the index (the file is truncated for a new try); Denied, another token;
// Unavailable, try again, if its cause is Busy after a pause.
func (c *Client) Fetch(ctx context.Context, address string, k OutputKey, partition int, path string) (*Fetched, error) {
	// A link of a helper that died before it announced the partition.
	if err := os.Remove(path + linkSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	have, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	got, sum, err := c.receive(ctx, address, Path(k, partition), have, f)
	if err == nil {
		if verr := verify(f, got.Range, have, sum); verr != nil {
			err = errors.Join(fault.New(fault.Corrupt, "%w", verr), f.Truncate(0))
		}
	}
	switch {
	case err != nil:
		_ = os.Remove(path + linkSuffix)
		return nil, fmt.Errorf("partition %d of map %d from %s: %w", partition, k.Task, address, err)
	case got.Path != path:
		err = os.Remove(path) // it is empty
	}
	got.Range.Offset = 0
	return got, err
}

// verify compares the file with the index. If the whole file was received by this call, its
// checksum is known; if an earlier call began it, the file is read again.
func verify(f *os.File, want mapreduce.PartitionRange, have int64, sum uint32) error {
	if have == 0 && sum == want.CRC32C {
		return nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return want.Verify(f)
}

// receive appends the rest of the partition, or links it, and returns its CRC-32C.
func (c *Client) receive(ctx context.Context, address, path string, have int64, to *os.File) (got *Fetched, sum uint32, err error) {
	stall := c.stallLimit
	if stall <= 0 {
		stall = 30 * time.Second
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	idle := time.AfterFunc(stall, cancel)
	defer idle.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Scheme+"://"+unixhttp.Host(address)+path, nil)
	if err != nil {
		return nil, 0, fault.New(fault.Invalid, "%w", err)
	}
	req.Header.Set("Authorization", proof(c.Token, path))
	if have > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(have, 10)+"-")
	}
	res, err := c.do(ctx, address, req)
	if err != nil {
		return nil, 0, fault.New(fault.Unavailable, "%w", err)
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return nil, 0, errors.Join(fault.New(fault.Unavailable, "the partial file is longer than the partition: starting again"), to.Truncate(0))
	}
	got, err = parseResponse(res)
	if err != nil {
		return nil, 0, err
	}
	var copied io.Writer = to
	got.Path = to.Name()
	if local, ok := res.Body.(*localBody); ok && have == 0 && local.link(to.Name()+linkSuffix, got.Range, to) {
		got.Path, copied = to.Name()+linkSuffix, io.Discard // it is read for its sum
	}
	left := got.Range.Length - have
	buf := make([]byte, max(0, min(256<<10, left)))
	for left > 0 {
		n, err := res.Body.Read(buf[:min(int64(len(buf)), left)])
		idle.Reset(stall)
		left -= int64(n)
		sum = mapreduce.CRC32C(sum, buf[:n])
		if _, werr := copied.Write(buf[:n]); werr != nil {
			return nil, 0, werr
		}
		if err != nil && left > 0 {
			return nil, 0, fault.New(fault.Unavailable, "the transfer ended %d bytes before the end: %w", left, err)
		}
	}
	return got, sum, nil
}

// do sends the request. A server on a socket of this machine hands over its open file.
func (c *Client) do(ctx context.Context, address string, req *http.Request) (*http.Response, error) {
	if socket, ok := strings.CutPrefix(address, unixhttp.Scheme); ok {
		return doLocal(ctx, socket, req)
	}
	return c.HTTP.Do(req)
}

// parseResponse checks status and headers of a response.
func parseResponse(res *http.Response) (*Fetched, error) {
	switch res.StatusCode {
	case http.StatusOK, http.StatusPartialContent:
	case http.StatusNotFound:
		return nil, fault.New(fault.NotFound, "the node does not have the output any more")
	case http.StatusUnauthorized:
		return nil, fault.New(fault.Denied, "the node does not take the job's token")
	case http.StatusInternalServerError:
		return nil, fault.New(fault.Corrupt, "the node cannot read the output")
	case http.StatusServiceUnavailable:
		return nil, fault.New(fault.Unavailable, "the node answered %s: %w", res.Status, busy(res.Header))
	default:
		return nil, fault.New(fault.Unavailable, "the node answered %s", res.Status)
	}
	got := &Fetched{}
	if err := json.Unmarshal([]byte(res.Header.Get(headerPartition)), &got.Range); err != nil {
		return nil, fault.New(fault.Corrupt, "the answer does not describe the partition: %w", err)
	}
	if err := got.Codec.UnmarshalText([]byte(res.Header.Get(headerCodec))); err != nil {
		return nil, fault.New(fault.Corrupt, "%w", err)
	}
	if got.Range.Length < 0 {
		return nil, fault.New(fault.Corrupt, "the answer names a length of %d", got.Range.Length)
	}
	return got, nil
}
