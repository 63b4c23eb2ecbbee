package reuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// CloseIdle implements runtime.Reuser: it deletes containers that no task has used for that long,
// those of an earlier driver that no task of it needs, and what a start or a removal that was cut
// short has left of others.
func (d *Driver) CloseIdle(ctx context.Context, idle time.Duration) error {
	all, err := d.Engine.List(ctx)
	if err != nil {
		return err
	}
	left, err := d.Engine.Leftovers(ctx)
	if err != nil {
		return err
	}
	ids := map[string]bool{}
	for _, s := range all {
		if isShared(s) {
			ids[s.ID] = true
		}
	}
	for _, l := range left {
		if strings.HasPrefix(l.ID, sharedPrefix) {
			ids[l.ID] = true
		}
	}
	for _, dir := range []string{d.cfg.socketsDir(), d.cfg.group(d.cfg.Cgroup)} {
		rests, e := os.ReadDir(dir)
		if e != nil && !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
		for _, r := range rests {
			if strings.HasPrefix(r.Name(), sharedPrefix) {
				ids[r.Name()] = true
			}
		}
	}
	for id := range ids {
		if c, needed := d.use(id, idle); c != nil {
			err = errors.Join(err, d.discard(ctx, c))
		} else if !needed {
			err = errors.Join(err, d.deleteShared(ctx, id))
		}
	}
	return err
}

// shared returns how many containers were made, and how many are left.
func (d *Driver) shared() (opened, left int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened, len(d.containers)
}

// use takes a container that has been idle for that long, or has died, and otherwise reports whether
// something needs it.
func (d *Driver) use(id string, idle time.Duration) (c *container, needed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.containers[id]; c != nil {
		if c.takeIfIdle(idle) || c.isDead() {
			return c, false
		}
		return nil, true
	}
	if d.opening[id] {
		return nil, true
	}
	for _, t := range d.tasks {
		if t.needs(id) {
			return nil, true
		}
	}
	return nil, false
}

// deleteShared deletes a container of the engine and what is left of it.
func (d *Driver) deleteShared(ctx context.Context, id string) error {
	if err := d.Engine.Delete(ctx, id); err != nil {
		return fmt.Errorf("container that is used again: %w", err)
	}
	if err := os.Remove(d.cfg.group(filepath.Join(d.cfg.Cgroup, id))); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.RemoveAll(filepath.Join(d.cfg.socketsDir(), id))
}
