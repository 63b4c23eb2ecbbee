package backfill

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// space is what is free when: on bins, and in accounts.
type space struct {
	profile  *Profile
	accounts *Profile // nil without accounts
}

// occupy takes a need of an item's task from the profile and its project's account (sign
// -1), or returns it (sign 1).
func (c *space) occupy(it *item, s *Spot, end scheduler.Time, need *Need, sign int64) {
	c.profile.Change(s.Bin, s.Disk, s.At, end, need, sign)
	c.charge(it, s.At, end, need, sign)
}

// charge takes a need of an item's task from its project's account, or returns it with sign 1.
func (c *space) charge(it *item, at, end scheduler.Time, need *Need, sign int64) {
	a := it.group.project.Account
	if c.accounts == nil || a == 0 {
		return
	}
	total := &it.group.accountNeed
	if !equalNeeds(need, &it.group.req.Need) {
		total = &Need{Base: append(slices.Clone(need.Base), need.IO)}
	}
	c.accounts.Change(a-1, -1, at, end, total, sign)
}

// occupyBeyond returns what a suspended task occupies already from its planned end on
// (sign -1), or takes it again (sign 1).
func (c *space) occupyBeyond(it *item, sign int64) {
	if occupied := it.group.req.Occupied; occupied != nil {
		c.profile.Change(it.spot.Bin, it.spot.Disk, it.end, scheduler.Never, occupied, -sign)
	}
}

// earliestByAccount returns the first time at or after at from which the account of the
// item's project has enough for the item during the given duration.
func (c *space) earliestByAccount(it *item, at scheduler.Time, duration time.Duration) scheduler.Time {
	a := it.group.project.Account
	if c.accounts == nil || a == 0 {
		return at
	}
	s, _ := c.accounts.EarliestAt(a-1, -1, at, duration, scheduler.Never, &it.group.accountNeed)
	return s.At
}

// accountOverdrawn reports whether the item's account is over its capacity during the
// item's reservation.
func (c *space) accountOverdrawn(it *item) bool {
	a := it.group.project.Account
	return c.accounts != nil && a > 0 && c.accounts.FirstOverCapacity(a-1, it.spot.At, it.end) < scheduler.Never
}
