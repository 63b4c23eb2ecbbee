package coordinator

import (
	"context"
	"fmt"
	"strings"
)

// maxPeerAddresses is the number of peer addresses whose API URL is remembered.
const maxPeerAddresses = 100

// noLeader is the cached reason why nobody leads.
type noLeader struct {
	text     string
	possible bool // enough coordinators answer to elect one
}

// whyNoLeader returns which servers answer and, if they are too few to elect a leader, what to do.
// possible is set if they are enough.
func (p *peers) whyNoLeader(ctx context.Context) (text string, possible bool) {
	p.mu.Lock()
	why, at := p.why, p.whyAt
	p.mu.Unlock()
	if why.text != "" && p.c.now().Sub(at) < whyFor {
		return why.text, why.possible
	}
	servers, _, err := p.c.replica.Servers()
	if err != nil {
		return err.Error(), true
	}
	why = reasonForNoLeader(p.c.cfg.ID, p.describeAll(ctx, servers))
	if ctx.Err() != nil { // they had no time to answer
		why.possible = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.why, p.whyAt = why, p.c.now()
	return why.text, why.possible
}

func reasonForNoLeader(self string, all []described) noLeader {
	var silent, empty []string
	voters, answer := 0, 0
	for _, d := range all {
		if !d.voter {
			continue
		}
		voters++
		at := fmt.Sprintf("%s at %s", d.peer.ID, d.peer.Address)
		switch {
		case d.err != nil:
			silent = append(silent, at)
		case len(d.state.GetServers()) == 0: // its log is not there, so that it cannot vote
			empty = append(empty, at)
		default:
			answer++
		}
	}
	need := voters/2 + 1
	switch {
	case voters == 0:
		return noLeader{text: fmt.Sprintf("coordinator %q waits for the log of a leader", self)}
	case answer >= need:
		return noLeader{"the coordinators have no leader yet: try again in a second", true}
	case len(empty) > 0:
		start := ""
		if len(silent) > 0 {
			start = "; start " + strings.Join(silent, ", ")
		}
		return noLeader{text: fmt.Sprintf("the coordinators have no leader: %d of %d answer coordinator %q with a log and %d must; the data folder of %s is empty, which gets the log from a leader and does not vote before%s; if too many folders are lost for good, go on with what one has: drover operator repair -alone %s",
			answer, voters, self, need, strings.Join(empty, ", "), start, self)}
	default:
		return noLeader{text: fmt.Sprintf("the coordinators have no leader: %d of %d answer coordinator %q and %d must; start %s; if too many are lost for good, go on with what one has: drover operator repair -alone %s",
			answer, voters, self, need, strings.Join(silent, ", "), self)}
	}
}
