package mapreduce

import (
	"cmp"
	"fmt"
	"slices"
)

// MaxPieces bounds the pieces of one combined split.
const MaxPieces = 4096

// FileBlock is a stretch of an input file and where its replicas are. Hosts
// and Racks are parallel: Racks[i] is the rack of Hosts[i], or Racks is empty.
type FileBlock struct {
	Path   string
	Offset int64 // bytes
	Length int64 // bytes
	Hosts  []string
	Racks  []string
}

// Piece is one range of one file. A compressed piece is a whole file.
type Piece struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	Codec  Codec  `json:"codec"`
}

// Split is the input of one map task. Hosts are those that hold some of it,
// most bytes first, then by name; Racks likewise.
type Split struct {
	Pieces []Piece  `json:"pieces"`
	Hosts  []string `json:"hosts,omitempty"`
	Racks  []string `json:"racks,omitempty"`
}

// Length is the number of stored bytes in the split.
func (s *Split) Length() int64 {
	var n int64
	for _, p := range s.Pieces {
		n += p.Length
	}
	return n
}

// unit is what Plan cannot cut further: a block, or a compressed file.
type unit struct {
	piece  Piece
	blocks []FileBlock
}

// Plan makes splits of blocks. Each non-empty block becomes one split, each
// compressed file one. With combine > 0, units smaller than combine bytes are
// packed together up to that size: first such as share a host, then a rack,
// then what is left; larger units stay alone. The result does not depend on
// the order of blocks and is ordered by first piece. Blocks of one file must
// not overlap; compressed files must be whole. O(n log n) without combine;
// packing adds O(n hosts).
func Plan(blocks []FileBlock, combine int64) ([]Split, error) {
	units, err := planUnits(blocks)
	if err != nil {
		return nil, err
	}
	var splits []Split
	var small []unit
	for _, u := range units {
		if u.piece.Length < combine {
			small = append(small, u)
		} else {
			splits = append(splits, newSplit([]unit{u}))
		}
	}
	for _, group := range pack(small, combine) {
		splits = append(splits, newSplit(group))
	}
	slices.SortFunc(splits, func(a, b Split) int { return comparePieces(a.Pieces[0], b.Pieces[0]) })
	return splits, nil
}

func comparePieces(a, b Piece) int {
	return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Offset, b.Offset))
}

// planUnits sorts blocks by place and joins those of compressed files.
func planUnits(blocks []FileBlock) ([]unit, error) {
	sorted := slices.Clone(blocks)
	slices.SortFunc(sorted, func(a, b FileBlock) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Length, b.Length))
	})
	var units []unit
	path, end := "", int64(0)
	for _, b := range sorted {
		if b.Path != path {
			path, end = b.Path, 0
		}
		codec, err := CodecOf(b.Path)
		if err != nil {
			return nil, err
		}
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
		units = append(units, unit{Piece{b.Path, b.Offset, b.Length, codec}, []FileBlock{b}})
	}
	return units, nil
}

func newSplit(us []unit) Split {
	var s Split
	hosts, racks := map[string]int64{}, map[string]int64{}
	for _, u := range us {
		s.Pieces = append(s.Pieces, u.piece)
		for _, b := range u.blocks {
			addBytes(hosts, b.Hosts, b.Length)
			addBytes(racks, b.Racks, b.Length)
		}
	}
	s.Hosts, s.Racks = byBytes(hosts), byBytes(racks)
	return s
}

// addBytes credits each distinct name once for n bytes.
func addBytes(to map[string]int64, list []string, n int64) {
	for i, name := range list {
		if name != "" && !slices.Contains(list[:i], name) {
			to[name] += n
		}
	}
}

func byBytes(m map[string]int64) []string {
	var out []string
	for name := range m {
		out = append(out, name)
	}
	slices.SortFunc(out, func(a, b string) int {
		return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b))
	})
	return out
}
