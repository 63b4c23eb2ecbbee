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
		var seen []string
		for _, b := range u.blocks {
			for _, n := range namesOf(b) {
				if n == "" || slices.Contains(seen, n) {
					continue
				}
				seen = append(seen, n)
				if lists[n] == nil {
					order = append(order, n)
				}
				lists[n] = append(lists[n], i)
			}
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

// packOne packs a group from list if it is at least half full; units of a
// smaller group are left for packRest. It returns the units not yet packed.
func (p *packer) packOne(list []int) (rest []int, ok bool) {
	var group []int
	var size int64
	for k, i := range list {
		if p.packed[i] {
			continue
		}
		n := p.units[i].piece.Length
		if size+n > p.limit || len(group) == maxPieces {
			rest = list[k:]
			break
		}
		group = append(group, i)
		size += n
	}
	if size < (p.limit+1)/2 && len(group) < maxPieces {
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
