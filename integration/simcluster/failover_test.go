package simcluster

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// A follower found out by chance, after one to three times the time of an election, that its leader was gone, and
// the slower of two followers decided when the next one led. Once in a while (5 of 4,000 elections here) both ask for votes
// at the same time, nobody wins, and the next election decides: one of four may take so long, and none more.
func TestAnotherServerLeadsSoon(t *testing.T) {
	const election = time.Second
	for _, silent := range []bool{false, true} {
		limit := election // its port refuses connections
		if silent {
			limit = 2 * election
		}
		var late []time.Duration
		for seed := range uint64(4) {
			t.Run(fmt.Sprint("silent=", silent, " seed=", seed), func(t *testing.T) {
				dir := memoryFolder(t)
				synctest.Test(t, func(t *testing.T) {
					c := newCluster(t, seed, dir)
					c.plain, c.election = true, election
					c.addServers(3)
					leader := c.awaitLeader(time.Minute, c.serverNames()...)
					time.Sleep(time.Duration(seed) * 77 * time.Millisecond)
					terms, began := c.world.terms(), time.Now()
					c.server(leader).crash(silent)
					for c.world.terms() == terms && time.Since(began) < time.Minute {
						time.Sleep(election / 100)
					}
					if took := time.Since(began); took > 4*election {
						t.Errorf("another server leads after %s, want %s at most", took, 4*election)
					} else if took > limit {
						late = append(late, took)
					}
					c.close()
					for _, b := range c.bad {
						t.Error(b)
					}
				})
			})
		}
		if len(late) > 1 {
			t.Errorf("silent %v: other servers lead after %s, want %s at most but for one", silent, late, limit)
		}
	}
}

// A leader that nobody hears for less than a follower waits goes on leading, or the same servers elect once: no node
// is lost.
func TestAShortSilenceIsNoElection(t *testing.T) {
	const election = time.Second
	dir := memoryFolder(t)
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, dir)
		c.plain, c.election = true, election
		c.addServers(3)
		leader := c.awaitLeader(time.Minute, c.serverNames()...)
		terms := c.world.terms()
		for _, s := range c.servers {
			if s.id == leader {
				continue
			}
			for range 4 { // each follower alone
				c.net.isolate(leader, s.id)
				time.Sleep(2 * election)
				c.net.mend("")
				time.Sleep(election)
			}
		}
		if n := c.world.terms() - terms; n != 0 {
			t.Errorf("%d elections, though a majority heard the leader", n)
		}
		c.close()
		for _, b := range c.bad {
			t.Error(b)
		}
	})
}
