package simcluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/raftstore"
	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/boltpages"
	"github.com/drover-run/drover/jobspec"
)

// The faults of this file are of the machines beneath the programs. They have a source of their own, as those of rare_test.go
// have.

// addHardware adds such faults to one of three plans. None with an old copy of a coordinator's disk has them: a node that is
// down, or cannot store a term, does not know that the copy's have passed.
func (p *plan) addHardware() {
	r := rand.New(rand.NewPCG(p.seed, 7))
	if r.IntN(3) > 0 || slices.ContainsFunc(p.faults, func(f plannedFault) bool { return f.kind == staleDisk }) {
		return
	}
	count := 1
	if p.focus == "" {
		count += r.IntN(3)
	}
	kinds := []faultKind{cutPower, fillNodeDisk}
	lost := slices.ContainsFunc(p.jobs, func(j plannedJob) bool { return j.losesDisk })
	if p.servers > 1 && !lost {
		kinds = append(kinds, loseDisk, loseVoter, loseVoter)
	}
	kinds = append(kinds, stepNodeClock, tearWrite)
	if !lost {
		kinds = append(kinds, damageDisk)
	}
	for range count {
		f := plannedFault{kind: kinds[r.IntN(len(kinds))], n: 1 + r.IntN(6), at: p.whileAJobRuns(r), length: between(r, 50*time.Millisecond, 2*lease), a: machineName(r.IntN(p.machines))}
		switch f.kind {
		case tearWrite:
			f.a = serverName(r.IntN(p.servers))
		case loseDisk, loseVoter, damageDisk: // one of three is all that may be lost
			f.a = serverName(r.IntN(p.servers))
			if p.servers > 1 {
				f.at = max(f.at, clusterBegins)
			}
			kinds = kinds[:2]
			if f.kind == loseVoter { // the entry that the two have is a user's
				f.length = max(f.length, lease/5)
				p.jobs[r.IntN(len(p.jobs))].delay(f.at + between(r, time.Millisecond, f.length))
			}
		case stepNodeClock: // mostly back, within a lease that is not renewed
			if p.focus == "leases" || r.IntN(2) == 0 {
				f.n, f.length = 5+r.IntN(2), 2*lease
				p.faults = append(p.faults, plannedFault{kind: isolateNode, a: f.a, at: f.at - min(f.at, between(r, lease/50, lease/2)), length: 2 * lease})
			}
		}
		if f.kind == cutPower && r.IntN(2) == 0 { // with tasks that are dumps then, and go on from them
			j := p.jobs[r.IntN(len(p.jobs))]
			s := plannedFault{kind: suspend, a: j.spec.Name, n: 2, at: j.at + between(r, 50*time.Millisecond, lease), length: 2 * lease}
			f.at = s.at + between(r, lease/5, lease)
			p.faults = append(p.faults, s)
		}
		p.faults = append(p.faults, f)
	}
}

// delay has a job be submitted at an instant, unless it is later, and all that happens to it as much later.
func (j *plannedJob) delay(until time.Duration) {
	by := until - j.at
	if by <= 0 {
		return
	}
	j.at = until
	if j.againAt > 0 {
		j.againAt += by
	}
	if j.stopAt > 0 {
		j.stopAt += by
	}
	if j.spec.Deadline != nil {
		due := j.spec.Deadline.Add(by)
		j.spec.Deadline = &due
	}
}

// clusterBegins is when all servers have a log. One that loses its disk before may be one of two that have.
const clusterBegins = 3 * maxElection

// addUploads has one of three plans upload files for jobs. In some the leader loses its disk when it has taken one.
func (p *plan) addUploads() {
	r := rand.New(rand.NewPCG(p.seed, 8))
	if r.IntN(3) > 0 {
		return
	}
	lost := p.servers == 1 || r.IntN(2) == 0
	for i := range p.jobs {
		j := &p.jobs[i]
		if j.wordCount != nil || p.focus == "" && r.IntN(2) == 0 {
			continue
		}
		j.file = strings.Repeat(fmt.Sprintf("%s has what seed %d says, ", j.spec.Name, p.seed), 1+r.IntN(200))
		sum := sha256.Sum256([]byte(j.file))
		for s := range j.spec.Stages {
			j.spec.Stages[s].Files = []jobspec.File{{Name: taskFile, Source: taskFile, Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(j.file))}}
		}
		if !lost {
			j.losesDisk, lost = true, true
		}
	}
}

// taskFile is where a task has the file of its job.
const taskFile = "data/file"

// upload uploads the file of a job, if it has one, until it is stored, and reports whether it was.
func (c *cluster) upload(p plannedJob) bool {
	if p.file == "" {
		return true
	}
	var leader *server
	if p.losesDisk { // what it sends to the others is late
		time.Sleep(time.Until(c.began.Add(clusterBegins)))
		if leader = c.server(c.leader()); leader != nil {
			for _, id := range c.serverNames() {
				c.net.slowLink(leader.id, id, lease/20)
			}
		}
	}
	c.world.setFile(p.spec.Name, p.file)
	for {
		err := c.putFile(p)
		c.log("user: file of %s: %v", p.spec.Name, err)
		if err == nil {
			break
		}
		if !c.mayRepeat("the file of job %s is not stored", p.spec.Name) {
			return false
		}
	}
	if leader != nil {
		leader.loseDisk()
		c.net.mend(leader.id)
		time.Sleep(time.Second)
		leader.restart()
	}
	return true
}

// putFile sends the file of a job unless it is stored. The question finds the leader.
func (c *cluster) putFile(p plannedJob) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	f := p.spec.Stages[0].Files[0]
	has, err := c.client.HasBlobs(ctx, connect.NewRequest(&droverv1.HasBlobsRequest{Digests: []string{f.Digest}}))
	if err != nil || len(has.Msg.Missing) == 0 {
		return err
	}
	stream := c.client.PutBlob(ctx)
	errSend := stream.Send(&droverv1.PutBlobRequest{Digest: f.Digest, Size: f.Size, Data: []byte(p.file)})
	if _, err := stream.CloseAndReceive(); err != nil {
		return err
	}
	return errSend
}

// checkFiles checks that the coordinators have the files of the jobs that were accepted, which they have not forgotten.
func (c *cluster) checkFiles(p *plan) {
	for _, j := range p.jobs {
		if j.file == "" || c.accepted[j.spec.Name] == 0 || c.restores.hadEnded(c.accepted[j.spec.Name]) {
			continue
		}
		has, err := call(c.client.HasBlobs, &droverv1.HasBlobsRequest{Digests: []string{j.spec.Stages[0].Files[0].Digest}})
		if err != nil || len(has.Missing) > 0 {
			c.violated("the file of job %s is missing: %v", j.spec.Name, err)
		}
	}
}

// setFile says which file the tasks of a job have.
func (w *world) setFile(job, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.files[job] = text
}

// checkFile checks that the file of its job is there for a program, wherever that is.
func (w *world) checkFile(run *programRun) {
	w.mu.Lock()
	want, ok := w.files[run.proc.Spec.Labels["drover.job"]]
	w.mu.Unlock()
	if !ok {
		return
	}
	got, err := os.ReadFile(filepath.Join(w.machineOf(run).data, "attempts", run.id, "task", taskFile))
	if err != nil || string(got) != want {
		w.c.violated("attempt %s has %d bytes of its file, which has %d: %v", run.id, len(got), len(want), err)
	}
}

// loseDisk ends a server that runs, which has nothing when it starts again.
func (s *server) loseDisk() {
	if !s.isUp() {
		return
	}
	s.crash(true)
	s.emptyDisk()
}

// emptyDisk has a server that does not run start with nothing.
func (s *server) emptyDisk() {
	s.step.mu.Lock()
	defer s.step.mu.Unlock()
	s.copies++
	s.dir, s.disk = filepath.Join(s.c.dir, fmt.Sprintf("state-%s-%d", s.id, s.copies)), nil
	s.c.lostDisk = true
	s.c.log("%s has lost its disk", s.id)
}

// loseVoter has two servers go on without the third one, then cuts off the leader, and takes the disk of the other one: that
// one must not help the third one lead, which lacks what the two have.
func (c *cluster) loseVoter(f plannedFault) {
	leader := c.leader()
	if leader == "" {
		return
	}
	others := slices.DeleteFunc(c.serverNames(), func(id string) bool { return id == leader })
	behind, forgets := others[f.n%2], c.server(others[1-f.n%2])
	c.log("%s stays behind, and %s will lose its disk", behind, forgets.id)
	c.net.isolate(behind, c.serverNames()...)
	time.Sleep(f.length)
	c.net.mend(behind)
	c.net.isolate(leader, c.parties()...)
	forgets.loseDisk()
	forgets.restart()
	time.Sleep(3 * maxElection)
	c.net.mend(leader)
}

// damageDisk returns the steps of a power cut that leaves a file of a server's raft store or of one of its snapshots damaged.
// If the server refuses to start, an operator has it start with an empty disk, or if it is alone with the files as they were.
func (c *cluster) damageDisk(f plannedFault) []step {
	s := c.server(f.a)
	whole := ""
	return []step{
		{f.at, func() {
			if !s.isUp() {
				return
			}
			c.log("fault: %s", f)
			s.crash(true)
			whole = filepath.Join(c.dir, "whole-"+s.id)
			if err := copyFolder(s.folder(), whole); err != nil {
				c.t.Fatal(err)
			}
			c.log("damage of %s: %s", s.id, damageOne(c.t, rand.New(rand.NewPCG(uint64(f.at), uint64(f.length))), filepath.Join(s.folder(), "raft")))
			s.damaged.Store(true)
		}},
		{f.at + f.length, s.restart},
		{f.at + f.length + time.Second, func() {
			s.damaged.Store(false)
			if !s.refused.Swap(false) {
				return
			}
			c.log("%s has refused to start", s.id)
			down := !s.isUp() // by another fault
			s.crash(true)
			if len(c.servers) > 1 {
				s.emptyDisk()
			} else {
				s.replaceFolder(whole)
			}
			if !down {
				s.restart()
			}
		}},
	}
}

// damageOne damages one of the files below a folder, and returns what it did.
func damageOne(t testing.TB, r *rand.Rand, dir string) string {
	var paths []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil || len(paths) == 0 {
		t.Fatal(err, paths)
	}
	path, log := paths[r.IntN(len(paths))], r.IntN(2) == 0
	if log {
		path = filepath.Join(dir, raftstore.LogFile)
	}
	file, err := os.ReadFile(path)
	if err != nil || len(file) == 0 {
		return fmt.Sprintf("%s has %d bytes: %v", path, len(file), err)
	}
	bad, what := bitrot.Damage(r, file)
	if log {
		bad, what = damageEntry(t, r, path, file)
	}
	if err := os.WriteFile(path, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	return path + ": " + what
}

// damageEntry flips a bit in an entry of a log, in every copy of the entry that the file has: most of its other bytes are in no page that is used.
func damageEntry(t testing.TB, r *rand.Rand, path string, file []byte) ([]byte, string) {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // it was only read
	var entries [][]byte
	if err := boltpages.EachLeaf(f, func(key, value []byte) {
		if len(key) == 8 && len(value) > 8 {
			entries = append(entries, bytes.Clone(value))
		}
	}); err != nil {
		t.Fatal(err)
	}
	if len(entries) == 0 {
		return bitrot.Damage(r, file)
	}
	entry := entries[r.IntN(len(entries))]
	i, bit := r.IntN(len(entry)), byte(1)<<r.IntN(8)
	bad := bytes.Clone(entry)
	bad[i] ^= bit
	return bytes.ReplaceAll(file, entry, bad), fmt.Sprintf("bit flipped at %d of an entry of %d bytes", i, len(entry))
}

// errTorn is what the disk says of a write in which the power is cut. Nobody hears of it.
var errTorn = errors.New("sim: the power is cut")

// tornWrite is a write of a server's raft store in which its power is cut.
type tornWrite struct {
	mu            sync.Mutex
	armed, fallen bool
	path          string
	before, after []byte // the file
	err           error
}

// arm has the power be cut in the next write.
func (w *tornWrite) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed = true
}

// writing is told of each write before it.
func (w *tornWrite) writing(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.armed && !w.fallen {
		w.path = path
		w.before, w.err = os.ReadFile(path)
	}
}

// fault fails the write that is torn, and all that come after it.
func (w *tornWrite) fault(written bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.armed && written && !w.fallen && w.path != "" {
		var err error
		w.after, err = os.ReadFile(w.path)
		w.fallen, w.err = true, errors.Join(w.err, err)
	}
	if w.fallen {
		return errTorn
	}
	return nil
}

// take returns the file of the torn write with so many bytes of its meta page written, and has no write torn any more; "" if
// there was none.
func (w *tornWrite) take(written int) (name string, file []byte, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.armed, w.fallen, w.path, w.before, w.after, w.err = false, false, "", nil, nil, nil }()
	if !w.fallen || w.err != nil {
		return "", nil, w.err
	}
	page, meta := os.Getpagesize(), 0
	if bytes.Equal(w.before[:page], w.after[:page]) {
		meta = page
	}
	copy(w.after[meta+written:meta+page], w.before[meta+written:])
	return filepath.Base(w.path), w.after, nil
}

// tear has the server start with a write of its raft store that was torn, if there was one.
func (s *server) tear(written int) {
	s.crash(true)
	name, file, err := s.torn.take(written)
	if err == nil && name != "" {
		s.c.log("a write of %s of %s is torn after %d bytes", name, s.id, written)
		err = os.WriteFile(filepath.Join(s.folder(), "raft", name), file, 0o600)
	}
	if err != nil {
		s.c.t.Fatal(err)
	}
	s.restart()
}

// notVoting returns the servers that do not vote, or lack a file.
func (c *cluster) notVoting() (out []string) {
	list, err := call(c.operator.ListServers, &droverv1.ListServersRequest{})
	if err != nil {
		return []string{err.Error()}
	}
	for _, s := range list.Servers {
		if !s.Voter || s.Error != "" || s.MissingFiles > 0 {
			out = append(out, fmt.Sprintf("server %s: voter %v, %d files missing, %s", s.Id, s.Voter, s.MissingFiles, s.Error))
		}
	}
	if len(list.Servers) < len(c.servers) {
		out = append(out, fmt.Sprintf("%d servers are in the cluster", len(list.Servers)))
	}
	return out
}
