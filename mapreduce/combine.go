package mapreduce

import "slices"

// packUnits groups small units into groups of at most limit bytes and maxPieces
// pieces. It makes three passes, as Hadoop's CombineFileInputFormat does: full
// groups of one host, then full groups of one rack, then the rest in order.
func packUnits(units []splitUnit, limit int64) [][]splitUnit {
	p := packer{units: units, packed: make([]bool, len(units)), limit: limit}
	p.packByLocation(func(b FileBlock) []string { return b.Hosts })
	p.packByLocation(func(b FileBlock) []string { return b.Racks })
	p.packRest()
	return p.groups
}

type packer struct {
	units  []splitUnit
	packed []bool
	limit  int64
	groups [][]splitUnit
}

// packByLocation visits the hosts (or racks) round robin and packs one full
// group for each, until none can fill a group. Round robin keeps one host from
// claiming every unit that it shares with others. Every group packed consumes
// units, so there are at most len(units) rounds.
func (p *packer) packByLocation(namesOf func(FileBlock) []string) {
	lists := map[string][]int{}
	var order []string
	for i, u := range p.units {
		for k, n := range namesOf(u.blocks[0]) {
			if n == "" || slices.Contains(namesOf(u.blocks[0])[:k], n) || !holdsAll(u.blocks[1:], n, namesOf) {
				continue
			}
			if lists[n] == nil {
				order = append(order, n)
			}
			lists[n] = append(lists[n], i)
		}
	}
	slices.Sort(order)
	for len(order) > 0 {
		var next []string
		for _, n := range order {
			if rest, ok := p.packOne(lists[n]); ok {
				lists[n] = rest
				next = append(next, n)
			}
		}
		order = next
	}
}

// holdsAll reports whether a host (or rack) has a replica of each block. There may be no host with
// a replica of every block of a compressed file.
func holdsAll(blocks []FileBlock, name string, namesOf func(FileBlock) []string) bool {
	return !slices.ContainsFunc(blocks, func(b FileBlock) bool { return !slices.Contains(namesOf(b), name) })
}

// packOne packs a group from list if the group is at least half full; it leaves the units of a
// smaller group to packRest. If a unit does not fit beside a group that is less than half full, the
// unit is larger than half a group: it becomes a group of its own, whichever host packs it. packOne
// returns the units not yet packed.
func (p *packer) packOne(list []int) (rest []int, ok bool) {
	var group []int
	var size int64
	half := (p.limit + 1) / 2
	for k, i := range list {
		if p.packed[i] {
			continue
		}
		n := p.units[i].piece.Length
		if size+n > p.limit && size < half && len(group) < maxPieces {
			p.emit([]int{i})
			continue
		}
		if size+n > p.limit || len(group) == maxPieces {
			rest = list[k:]
			break
		}
		group = append(group, i)
		size += n
	}
	if size < half && len(group) < maxPieces {
		return nil, false
	}
	p.emit(group)
	return rest, true
}

// packRest packs the remaining units in order.
func (p *packer) packRest() {
	var group []int
	var size int64
	for i, u := range p.units {
		if p.packed[i] {
			continue
		}
		n := u.piece.Length
		if len(group) > 0 && (size+n > p.limit || len(group) == maxPieces) {
			p.emit(group)
			group, size = nil, 0
		}
		group = append(group, i)
		size += n
	}
	if len(group) > 0 {
		p.emit(group)
	}
}

func (p *packer) emit(group []int) {
	us := make([]splitUnit, len(group))
	for k, i := range group {
		p.packed[i] = true
		us[k] = p.units[i]
	}
	p.groups = append(p.groups, us)
}
