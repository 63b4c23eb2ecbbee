// Package pastlogs keeps the logs of attempts that have left the node, within a limit of bytes and
// of age. The limits do not apply to jobs that are live or ended a moment ago: their logs are kept
// as if still in the attempts' folders.
//
// On disk: <dir>/<attempt>/logs/<file>, so that such a folder is read like an attempt's own, and
// <dir>/.part-<attempt> while it is written. The modification time of the folder <attempt> is when
// it was kept. An empty file <dir>/.lost-<attempt> means that its logs could not be kept. Nothing
// is synced: after a crash of the machine the last logs may be missing.
package pastlogs

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// nameLogs is the folder of the logs in an attempt's folder.
const nameLogs = "logs"

const (
	partPrefix = ".part-"
	lostPrefix = ".lost-"
)

// Disk space of logs besides their bytes: two folders, and the rest of each file's last block. It
// bounds the number of kept logs, however short.
const (
	block       = 4096
	folderBytes = 2 * block
)

// Options limit a Store.
type Options struct {
	MaxBytes int64         // disk space of the logs of jobs that are not in use; the oldest are removed first
	MaxAge   time.Duration // of these, since they were kept
	MaxFile  int64         // bytes of one file that are kept, its end
}

// Store is a folder of logs. All methods are safe for concurrent use.
type Store struct {
	dir    string
	o      Options
	remove func(path string) error // os.RemoveAll

	mu      sync.Mutex
	entries []entry              // oldest first
	kept    map[string]struct{}  // their attempts
	failed  map[string]time.Time // attempts whose logs could not be kept, and when; at most maxFailed
}

// maxFailed bounds the attempts that are remembered as failed: a full disk may fail many.
const maxFailed = 10_000

type entry struct {
	attempt string
	at      time.Time
	bytes   int64
}

// Open reads the folder, creates it if it is missing, and removes what an earlier process left half
// written. O(attempts kept).
func Open(dir string, o Options) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	s := &Store{dir: dir, o: o, remove: os.RemoveAll, kept: map[string]struct{}{}, failed: map[string]time.Time{}}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), partPrefix) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
			continue
		}
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		if attempt, lost := strings.CutPrefix(e.Name(), lostPrefix); lost {
			s.failed[attempt] = info.ModTime()
			continue
		}
		n, err := sizeOf(filepath.Join(dir, e.Name(), nameLogs))
		if err != nil {
			return nil, err
		}
		s.addLocked(entry{e.Name(), info.ModTime(), n})
	}
	s.sortLocked()
	return s, nil
}

func (s *Store) sortLocked() {
	slices.SortFunc(s.entries, func(a, b entry) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.attempt, b.attempt)) })
}

func (s *Store) addLocked(e entry) {
	s.entries = append(s.entries, e)
	s.kept[e.attempt] = struct{}{}
}

// sizeOf returns the disk space of a folder of logs.
func sizeOf(dir string) (n int64, err error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return folderBytes, nil
	}
	n = folderBytes
	for _, e := range list {
		info, err := e.Info()
		if err != nil {
			return 0, err
		}
		n += inBlocks(info.Size())
	}
	return n, err
}

func inBlocks(bytes int64) int64 { return (bytes + block - 1) / block * block }

// Folder returns the folder that has an attempt's logs, "" if they are not kept.
func (s *Store) Folder(attempt string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.kept[attempt]; !ok {
		return ""
	}
	return filepath.Join(s.dir, attempt)
}

// Failed reports whether Keep failed for an attempt, in this process or an earlier one. If too many
// failed to remember each, it reports true for any.
func (s *Store) Failed(attempt string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, failed := s.failed[attempt]
	return failed || len(s.failed) >= maxFailed
}

// addFailedLocked records that the logs of an attempt are lost, in memory and as a file. Even a
// full disk usually has space for the file; without it, a later process will not know.
func (s *Store) addFailedLocked(attempt string, now time.Time) error {
	if len(s.failed) >= maxFailed {
		return nil
	}
	s.failed[attempt] = now
	file := s.lostFile(attempt)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	return os.Chtimes(file, now, now)
}

func (s *Store) lostFile(attempt string) string { return filepath.Join(s.dir, lostPrefix+attempt) }

func (s *Store) forgetFailedLocked(attempt string) error {
	if _, failed := s.failed[attempt]; !failed {
		return nil
	}
	if err := os.Remove(s.lostFile(attempt)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(s.failed, attempt)
	return nil
}

// Attempts returns the attempts whose logs are kept.
func (s *Store) Attempts() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.kept))
}

// Keep copies the logs from an attempt's folder. If the attempt wrote nothing, Keep stores nothing.
// The tenant may own the folder: links cannot lead out of it, and only regular files are read.
// O(bytes).
func (s *Store) Keep(attempt, from string, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.kept[attempt]; ok {
		return nil // a removal that is tried again
	}
	if err := s.forgetFailedLocked(attempt); err != nil {
		return err
	}
	part, to := filepath.Join(s.dir, partPrefix+attempt), filepath.Join(s.dir, attempt)
	n, err := s.copyLogs(from, part)
	if err == nil && n == 0 {
		return nil
	}
	if err == nil {
		err = errors.Join(os.Chtimes(part, now, now), os.Rename(part, to))
	}
	if err != nil {
		err = fmt.Errorf("keep the logs of attempt %s: %w", attempt, err)
		return errors.Join(err, os.RemoveAll(part), s.addFailedLocked(attempt, now))
	}
	s.addLocked(entry{attempt, now, n})
	return nil
}

// copyLogs copies the non-empty files of from/logs to part/logs and returns their disk space; if
// there are none, it returns 0 and makes no folder.
func (s *Store) copyLogs(from, part string) (n int64, err error) {
	root, err := os.OpenRoot(from)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // it never had a folder
	}
	if err != nil {
		return 0, err
	}
	defer root.Close()
	list, err := fs.ReadDir(root.FS(), nameLogs)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	for _, e := range list {
		if !e.Type().IsRegular() {
			continue
		}
		k, err := s.copyFile(root, e.Name(), filepath.Join(part, nameLogs))
		if err != nil {
			return 0, err
		}
		n += inBlocks(k)
	}
	if n > 0 {
		n += folderBytes
	}
	return n, err
}

// copyFile copies the end of a file into a folder, and creates the folder if it is missing.
func (s *Store) copyFile(root *os.Root, name, into string) (n int64, err error) {
	in, err := root.OpenFile(filepath.Join(nameLogs, name), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return 0, err
	}
	if err := os.MkdirAll(into, 0o700); err != nil {
		return 0, err
	}
	if rest := info.Size() - s.o.MaxFile; rest > 0 {
		if _, err := in.Seek(rest, io.SeekStart); err != nil {
			return 0, err
		}
	}
	out, err := os.OpenFile(filepath.Join(into, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	n, err = io.Copy(out, io.LimitReader(in, s.o.MaxFile))
	return n, errors.Join(err, out.Close())
}

// Prune removes logs that are too old or exceed MaxBytes. The logs of jobs for which inUse returns
// true do not count. O(attempts kept). Removing one from the disk may take a millisecond, in which
// the store is not locked. What cannot be removed stays, and the next Prune tries again.
func (s *Store) Prune(now time.Time, inUse func(job uint64) bool) error {
	var stay []entry
	var errs error
	for _, e := range s.takeOld(now, inUse) {
		if err := s.remove(filepath.Join(s.dir, e.attempt)); err != nil {
			stay, errs = append(stay, e), errors.Join(errs, fmt.Errorf("remove old logs: %w", err))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.putBackLocked(stay)
	for attempt, at := range s.failed {
		if now.Sub(at) <= s.o.MaxAge || inUse(jobOf(attempt)) {
			continue
		}
		if err := s.forgetFailedLocked(attempt); err != nil {
			errs = errors.Join(errs, fmt.Errorf("forget old logs that are lost: %w", err))
		}
	}
	return errs
}

// takeOld removes from the store, but not yet from the disk, what Prune is to remove.
func (s *Store) takeOld(now time.Time, inUse func(job uint64) bool) (old []entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.redateLocked(now)
	counts := func(e entry) bool { return !e.at.After(now) && !inUse(jobOf(e.attempt)) }
	excess := -s.o.MaxBytes
	for _, e := range s.entries {
		if counts(e) {
			excess += e.bytes
		}
	}
	s.entries = slices.DeleteFunc(s.entries, func(e entry) bool {
		if excess <= 0 && now.Sub(e.at) <= s.o.MaxAge || !counts(e) {
			return false
		}
		delete(s.kept, e.attempt)
		excess -= e.bytes
		old = append(old, e)
		return true
	})
	return old
}

// mostAhead is how far the time at which a log was kept may be ahead of now.
const mostAhead = time.Minute

// redateLocked sets times in the future to now: the clock was ahead when the logs were kept, and
// was set back. They would otherwise count as new for a long time, perhaps for years.
func (s *Store) redateLocked(now time.Time) {
	latest, changed := now.Add(mostAhead), false
	for i := range s.entries {
		if s.entries[i].at.After(latest) {
			s.entries[i].at, changed = now, true
		}
	}
	if changed {
		s.sortLocked()
	}
	for attempt, at := range s.failed {
		if at.After(latest) {
			s.failed[attempt] = now
		}
	}
}

// putBackLocked returns to the store what could not be removed from the disk.
func (s *Store) putBackLocked(list []entry) {
	for _, e := range list {
		s.addLocked(e)
	}
	s.sortLocked()
}

// jobOf returns the number of an attempt's job, 0 for a name that has none.
func jobOf(attempt string) uint64 {
	number, _, _ := strings.Cut(attempt, ".")
	job, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return 0
	}
	return job
}
