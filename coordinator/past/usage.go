package past

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

const dayMS = 24 * 60 * 60 * 1000

func dayOf(ms int64) uint32 { return uint32(max(ms, 0) / dayMS) }

// usageKey is what usage is summed by.
type usageKey struct {
	day                uint32
	tenant, user, name string
}

func (k *usageKey) encode() []byte {
	b := binary.BigEndian.AppendUint32(nil, k.day)
	b = append(b, text(k.tenant)...)
	b = append(b, text(k.user)...)
	return append(b, strings.ReplaceAll(k.name, "\x00", "")...)
}

func decodeUsageKey(b []byte) (usageKey, error) {
	if len(b) < 4 {
		return usageKey{}, fmt.Errorf("a key of usage with %d bytes", len(b))
	}
	parts := bytes.SplitN(b[4:], []byte{0}, 3)
	if len(parts) != 3 {
		return usageKey{}, fmt.Errorf("a key of usage with %d parts", len(parts))
	}
	return usageKey{binary.BigEndian.Uint32(b), string(parts[0]), string(parts[1]), string(parts[2])}, nil
}

// usageSums are what a batch adds to the usage.
type usageSums map[usageKey]*droverv1.UsageRow

const hourMS = 60 * 60 * 1000

func (u usageSums) add(a *Attempt) {
	k := usageKey{dayOf(a.GetEndedMs()), a.Tenant, a.User, a.Name}
	if u[k] == nil {
		u[k] = &droverv1.UsageRow{}
	}
	row := &droverv1.UsageRow{Attempts: 1, CpuMs: a.GetUsage().GetCpuMs()}
	if a.GetState() == "failed" {
		row.Failed = 1
	}
	hours := float64(max(0, a.GetEndedMs()-a.GetPlacedMs()-a.GetSuspendedMs())) / hourMS
	d := a.GetDemand()
	row.OccupiedHours = hours
	row.CpuHours = float64(d.GetCpu()) / 1000 * hours
	row.MemoryGibHours = float64(d.GetMemory()) / (1 << 30) * hours
	row.IoMibHours = float64(d.GetIo()) / (1 << 20) * hours
	row.IoGib = (float64(a.GetUsage().GetReadBytes()) + float64(a.GetUsage().GetWriteBytes())) / (1 << 30)
	addUsage(u[k], row)
}

func addUsage(to, row *droverv1.UsageRow) {
	to.Attempts += row.GetAttempts()
	to.Failed += row.GetFailed()
	to.CpuMs += row.GetCpuMs()
	to.CpuHours += row.GetCpuHours()
	to.MemoryGibHours += row.GetMemoryGibHours()
	to.IoGib += row.GetIoGib()
	to.IoMibHours += row.GetIoMibHours()
	to.OccupiedHours += row.GetOccupiedHours()
}

func (u usageSums) store(tx *bolt.Tx, index uint64) error {
	b := tx.Bucket(kindUsage.bucket())
	for k, row := range u {
		key, sum := k.encode(), &droverv1.UsageRow{}
		if v := b.Get(key); v != nil {
			if err := open(kindUsage, key, v, sum); err != nil {
				return err
			}
		}
		addUsage(sum, row)
		if err := put(b, kindUsage, index, key, sum); err != nil {
			return err
		}
	}
	return nil
}

// UsageQuery selects and groups usage. Empty strings and zero times mean all.
type UsageQuery struct {
	SinceMS, UntilMS   int64 // from the day of the first; days that begin before the second
	Tenant, User, Name string
	Groups             []droverv1.UsageGroup
	Visible            func(tenant, user string) bool
}

// Usage returns the sums, those with the most CPU hours first. O(days * tenants *
// users * names) in the time that is asked for.
func (s *Store) Usage(q UsageQuery) ([]*droverv1.UsageRow, error) {
	sums := map[usageKey]*droverv1.UsageRow{}
	err := s.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(kindUsage.bucket()).Cursor()
		last := uint32(1<<32 - 1)
		if q.UntilMS > 0 {
			last = dayOf(q.UntilMS - 1)
		}
		for key, v := c.Seek(binary.BigEndian.AppendUint32(nil, dayOf(q.SinceMS))); key != nil; key, v = c.Next() {
			k, err := decodeUsageKey(key)
			if err != nil {
				return err
			}
			if k.day > last {
				return nil
			}
			if !q.matches(&k) {
				continue
			}
			row := &droverv1.UsageRow{}
			if err := open(kindUsage, key, v, row); err != nil {
				return err
			}
			group := q.group(&k)
			if sums[group] == nil {
				sums[group] = group.row(q.Groups)
			}
			addUsage(sums[group], row)
		}
		return nil
	})
	if err != nil {
		return nil, s.damaged(err)
	}
	rows := make([]*droverv1.UsageRow, 0, len(sums))
	for _, row := range sums {
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b *droverv1.UsageRow) int {
		return cmp.Or(cmp.Compare(b.GetCpuHours(), a.GetCpuHours()), cmp.Compare(a.GetDay(), b.GetDay()), cmp.Compare(a.GetTenant(), b.GetTenant()),
			cmp.Compare(a.GetUser(), b.GetUser()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return rows, nil
}

func (q *UsageQuery) matches(k *usageKey) bool {
	return (q.Tenant == "" || q.Tenant == k.tenant) && (q.User == "" || q.User == k.user) && (q.Name == "" || q.Name == k.name) && q.Visible(k.tenant, k.user)
}

// group returns the parts of k that are grouped by.
func (q *UsageQuery) group(k *usageKey) (out usageKey) {
	for _, g := range q.Groups {
		switch g {
		case droverv1.UsageGroup_USAGE_GROUP_TENANT:
			out.tenant = k.tenant
		case droverv1.UsageGroup_USAGE_GROUP_USER:
			out.user = k.user
		case droverv1.UsageGroup_USAGE_GROUP_JOB:
			out.name = k.name
		case droverv1.UsageGroup_USAGE_GROUP_DAY:
			out.day = k.day
		}
	}
	return out
}

func (k *usageKey) row(groups []droverv1.UsageGroup) *droverv1.UsageRow {
	row := &droverv1.UsageRow{Tenant: k.tenant, User: k.user, Name: k.name}
	if slices.Contains(groups, droverv1.UsageGroup_USAGE_GROUP_DAY) {
		row.Day = time.UnixMilli(int64(k.day) * dayMS).UTC().Format(time.DateOnly)
	}
	return row
}

// mergeNames adds up the usage of each tenant and user on days before day, under no
// job's name, at most n rows, and reports whether there may be more.
func mergeNames(tx *bolt.Tx, day uint32, n int) (more bool, err error) {
	b := tx.Bucket(kindUsage.bucket())
	sums := usageSums{}
	var gone [][]byte
	c := b.Cursor()
	for key, v := c.First(); key != nil; key, v = c.Next() {
		k, err := decodeUsageKey(key)
		if err != nil {
			return false, err
		}
		if k.day >= day || len(gone) >= n {
			break
		}
		if k.name == "" {
			continue
		}
		row := &droverv1.UsageRow{}
		if err := open(kindUsage, key, v, row); err != nil {
			return false, err
		}
		k.name = ""
		if sums[k] == nil {
			sums[k] = &droverv1.UsageRow{}
		}
		addUsage(sums[k], row)
		gone = append(gone, bytes.Clone(key))
	}
	for _, key := range gone {
		if err := b.Delete(key); err != nil {
			return false, err
		}
	}
	return len(gone) >= n, sums.store(tx, 0)
}
