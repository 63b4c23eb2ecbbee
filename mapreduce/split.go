package mapreduce

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Limits of a split.
const (
	maxPieces     = 4096 // of a combined split
	maxSplitHosts = 64   // hosts of a split, and racks: thousands of packed files have replicas on as many hosts
)

// errPiecesChanged is the error of Relocate if the input of the splits has changed.
var errPiecesChanged = errors.New("mapreduce: the input changed")

// FileBlock is a block of an input file and the places of its replicas. Hosts
// and Racks are parallel: Racks[i] is the rack of Hosts[i], or Racks is empty.
type FileBlock struct {
	Path   string
	Offset int64 // bytes
	Length int64 // bytes
	Hosts  []string
	Racks  []string
}

// Piece is a range of a file. A compressed piece is always a whole file.
type Piece struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	Codec  Codec  `json:"codec"`
	// FileLength is the length of the file when its splits were planned; bytes appended later
	// belong to no piece. 0: unknown. Only FetchSplit uses it.
	FileLength int64 `json:"file_length,omitempty"`
}

// Split is the input of one map task. Hosts holds the hosts that store some of
// it, most bytes first, then by name, at most maxSplitHosts. HostBytes holds the
// bytes on each, or is nil if each holds all of the split. Racks holds the racks of
// the replicas, in the same order as hosts.
type Split struct {
	Pieces    []Piece  `json:"pieces"`
	Hosts     []string `json:"hosts,omitempty"`
	HostBytes []int64  `json:"host_bytes,omitempty"`
	Racks     []string `json:"racks,omitempty"`
}

// length returns the number of stored bytes in the split.
func (s *Split) length() int64 {
	var n int64
	for _, p := range s.Pieces {
		n += p.Length
	}
	return n
}

// splitUnit is a block or a compressed file, which PlanSplits never divides.
type splitUnit struct {
	piece  Piece
	blocks []FileBlock
}

// PlanSplits turns blocks into splits. Each non-empty block and each compressed file becomes one
// split. With combine > 0, units smaller than combine bytes are packed together up to that size:
// first units of one host, then of one rack, then the rest; larger units stay alone. The result
// does not depend on the order of blocks and is sorted by first piece. Blocks of one file must not
// overlap, and compressed files must be complete; a file may be listed several times, each time
// with all its blocks. O(n log n); packing adds O(n hosts).
func PlanSplits(blocks []FileBlock, combine int64) ([]Split, error) {
	units, err := splitUnits(blocks)
	if err != nil {
		return nil, err
	}
	var splits []Split
	var small []splitUnit
	for _, u := range units {
		if u.piece.Length < combine {
			small = append(small, u)
		} else {
			splits = append(splits, newSplit([]splitUnit{u}))
		}
	}
	for _, group := range packUnits(small, combine) {
		splits = append(splits, newSplit(group))
	}
	slices.SortFunc(splits, func(a, b Split) int { return comparePieces(a.Pieces[0], b.Pieces[0]) })
	return splits, nil
}

// Relocate returns the splits with the hosts and racks of blocks, which must be a new lookup of the
// same input. The pieces do not change: packing again could group them differently, because
// replicas have moved. It returns an error if a block of a split no longer exists; it ignores
// additional files. O(n log n).
func Relocate(blocks []FileBlock, splits []Split) ([]Split, error) {
	units, err := splitUnits(blocks)
	if err != nil {
		return nil, err
	}
	type place struct {
		path   string
		offset int64
	}
	at := make(map[place]splitUnit, len(units))
	for _, u := range units {
		at[place{u.piece.Path, u.piece.Offset}] = u
	}
	out := make([]Split, len(splits))
	for i := range splits {
		us := make([]splitUnit, len(splits[i].Pieces))
		for k, p := range splits[i].Pieces {
			u, ok := at[place{p.Path, p.Offset}]
			if !ok || u.piece.Length != p.Length {
				return nil, fmt.Errorf("%w: %s has no block of %d bytes at %d", errPiecesChanged, p.Path, p.Length, p.Offset)
			}
			us[k] = u
		}
		out[i] = newSplit(us)
	}
	return out, nil
}

func comparePieces(a, b Piece) int {
	return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Offset, b.Offset))
}

// splitUnits sorts the blocks by path and offset and joins the blocks of each compressed file. If
// the job names a file several times, its blocks are listed several times, and its units are
// returned as often.
func splitUnits(blocks []FileBlock) ([]splitUnit, error) {
	sorted := slices.Clone(blocks)
	slices.SortStableFunc(sorted, func(a, b FileBlock) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Length, b.Length))
	})
	var units []splitUnit
	for len(sorted) > 0 {
		n := slices.IndexFunc(sorted, func(b FileBlock) bool { return b.Path != sorted[0].Path })
		if n < 0 {
			n = len(sorted)
		}
		once, copies, err := distinctBlocks(sorted[:n])
		if err != nil {
			return nil, err
		}
		of, err := fileUnits(once)
		if err != nil {
			return nil, err
		}
		for _, u := range of {
			for range copies {
				units = append(units, u)
			}
		}
		sorted = sorted[n:]
	}
	return units, nil
}

// distinctBlocks returns each block of a file once, and how often the list contains all of them.
func distinctBlocks(sorted []FileBlock) (once []FileBlock, copies int, err error) {
	n := 0 // of the present block
	for i, b := range sorted {
		if n++; i+1 < len(sorted) && b.Length > 0 && sorted[i+1].Offset == b.Offset && sorted[i+1].Length == b.Length {
			continue
		}
		once = append(once, b)
		if b.Length > 0 && copies == 0 {
			copies = n
		}
		if b.Length > 0 && copies != n {
			return nil, 0, fmt.Errorf("mapreduce: %s: the block at %d is there %d times, an earlier one %d times", b.Path, b.Offset, n, copies)
		}
		n = 0
	}
	return once, copies, nil
}

// fileUnits returns the units of one file's sorted blocks.
func fileUnits(blocks []FileBlock) ([]splitUnit, error) {
	codec, err := CodecOf(blocks[0].Path)
	if err != nil {
		return nil, err
	}
	var units []splitUnit
	end := int64(0)
	for _, b := range blocks {
		if b.Offset < 0 || b.Length < 0 || b.Offset+b.Length < b.Offset {
			return nil, fmt.Errorf("mapreduce: block of %s at %d has length %d", b.Path, b.Offset, b.Length)
		}
		if b.Length == 0 {
			continue
		}
		if b.Offset < end || (codec != CodecNone && b.Offset != end) {
			return nil, fmt.Errorf("mapreduce: blocks of %s: one ends at %d, the next starts at %d", b.Path, end, b.Offset)
		}
		end = b.Offset + b.Length
		if codec != CodecNone && b.Offset > 0 {
			last := &units[len(units)-1]
			last.piece.Length = end
			last.blocks = append(last.blocks, b)
			continue
		}
		units = append(units, splitUnit{Piece{Path: b.Path, Offset: b.Offset, Length: b.Length, Codec: codec}, []FileBlock{b}})
	}
	return units, nil
}

func newSplit(us []splitUnit) Split {
	var s Split
	hosts, racks := map[string]int64{}, map[string]int64{}
	for _, u := range us {
		s.Pieces = append(s.Pieces, u.piece)
		for _, b := range u.blocks {
			creditBytes(hosts, b.Hosts, b.Length)
			creditBytes(racks, b.Racks, b.Length)
		}
	}
	s.Hosts, s.Racks = sortedByBytes(hosts), sortedByBytes(racks)
	if n := len(s.Hosts); n > 0 && hosts[s.Hosts[n-1]] < s.length() { // the last host has the fewest bytes
		s.HostBytes = make([]int64, n)
		for k, h := range s.Hosts {
			s.HostBytes[k] = hosts[h]
		}
	}
	return s
}

// creditBytes adds n bytes to each distinct name of list.
func creditBytes(to map[string]int64, list []string, n int64) {
	for i, name := range list {
		if name != "" && !slices.Contains(list[:i], name) {
			to[name] += n
		}
	}
}

// sortedByBytes returns the names with most bytes, most first, at most maxSplitHosts.
func sortedByBytes(m map[string]int64) []string {
	var out []string
	for name := range m {
		out = append(out, name)
	}
	slices.SortFunc(out, func(a, b string) int {
		return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b))
	})
	return out[:min(len(out), maxSplitHosts)]
}
