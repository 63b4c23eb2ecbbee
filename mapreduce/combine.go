package mapreduce

import "slices"

// pack groups small units into groups of at most limit bytes and MaxPieces
// pieces. Three passes, as in Hadoop's CombineFileInputFormat: full groups of
// one host, then full groups of one rack, then the rest in order.
func pack(units []unit, limit int64) [][]unit {
	p := packer{units: units, taken: make([]bool, len(units)), limit: limit}
	p.byName(func(b FileBlock) []string { return b.Hosts })
	p.byName(func(b FileBlock) []string { return b.Racks })
	p.rest()
	return p.groups
}

type packer struct {
	units  []unit
	taken  []bool
	limit  int64
	groups [][]unit
}

// byName lets each host (or rack) in turn take one full group, until none can
// fill one; turns keep one host from taking what several hold. Each turn
// takes units, so there are at most len(units) rounds.
func (p *packer) byName(namesOf func(FileBlock) []string) {
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
			if rest, ok := p.takeOne(lists[n]); ok {
				lists[n] = rest
				next = append(next, n)
			}
		}
		order = next
	}
}

// takeOne takes a group from list if it is at least half full: a smaller one
// is better mixed with the leftovers of others. It returns what is left.
func (p *packer) takeOne(list []int) (rest []int, ok bool) {
	var group []int
	var size int64
	for k, i := range list {
		if p.taken[i] {
			continue
		}
		n := p.units[i].piece.Length
		if size+n > p.limit || len(group) == MaxPieces {
			rest = list[k:]
			break
		}
		group = append(group, i)
		size += n
	}
	if size < (p.limit+1)/2 && len(group) < MaxPieces {
		return nil, false
	}
	p.emit(group)
	return rest, true
}

// rest packs all that is not taken, in order.
func (p *packer) rest() {
	var group []int
	var size int64
	for i, u := range p.units {
		if p.taken[i] {
			continue
		}
		n := u.piece.Length
		if len(group) > 0 && (size+n > p.limit || len(group) == MaxPieces) {
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
	us := make([]unit, len(group))
	for k, i := range group {
		p.taken[i] = true
		us[k] = p.units[i]
	}
	p.groups = append(p.groups, us)
}
