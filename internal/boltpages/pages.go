// Package boltpages reads a bbolt file without the database. It reads each page by itself and
// checks all bounds, so that damage on disk becomes an error that names the page, and never a
// panic, an endless loop or a silently missing entry. The database itself maps its file and trusts
// it.
//
// Stores verify a file with this package before they open it, and recover the intact entries of a
// damaged file (EachLeaf).
package boltpages

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
)

// The parts of bbolt's file format that a check needs.
const (
	pageHeader    = 16
	pageElement   = 16
	branchFlag    = 0x01
	leafFlag      = 0x02
	bucketElement = 0x01
	bucketHeader  = 16 // root page and sequence
	boltMagic     = 0xED0CDAED
	boltVersion   = 2
	metaLength    = 56 // before its checksum
	maxDepth      = 64
	minPageSize   = 1 << 10
	maxPageSize   = 1 << 16
)

// File reads the pages of a database file.
type File struct {
	r     io.ReaderAt
	size  int64
	page  int64  // bytes of a page
	end   uint64 // pages with this number and above are not in use
	root  uint64
	epoch uint64 // transaction of the newest meta page
	torn  string // describes a meta page that was only partly written
	whole bool   // the pages of all buckets have been read, and are whole
}

// Torn describes the meta page that was only partly written because the power failed before its
// transaction was acknowledged. File is then the state before that transaction. It returns "" if
// there is no such page.
func (p *File) Torn() string { return p.torn }

// Source is a database file, mostly an *os.File.
type Source interface {
	io.ReaderAt
	Stat() (os.FileInfo, error)
	Name() string
}

// Open reads both meta pages of f, which the caller still owns. If one page is damaged, the
// database would use the other, and could silently forget an acknowledged transaction. Open
// therefore returns an error, unless the damaged page provably holds no acknowledged transaction
// (see replaced).
func Open(f Source) (*File, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	p := &File{r: f, size: info.Size(), page: int64(os.Getpagesize())}
	if p.size == 0 {
		return nil, fmt.Errorf("it is empty")
	}
	var head [pageHeader + metaLength]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return nil, fmt.Errorf("it ends within its first page, at %d bytes", p.size)
	}
	if n := int64(binary.LittleEndian.Uint32(head[pageHeader+8:])); n >= minPageSize && n <= maxPageSize && n&(n-1) == 0 {
		p.page = n
	}
	var damage error
	damaged := int64(-1)
	for i := range int64(2) {
		m, err := p.meta(i)
		switch {
		case err != nil && damaged >= 0:
			return nil, damage
		case err != nil:
			damaged, damage = i, fmt.Errorf("meta page %d: %w", i, err)
		case m.epoch >= p.epoch:
			p.root, p.end, p.epoch = m.root, m.end, m.epoch
		}
	}
	if p.end > uint64(p.size/p.page) {
		return nil, fmt.Errorf("it was cut short: it has %d bytes and its pages need %d", p.size, p.end*uint64(p.page))
	}
	if damaged >= 0 {
		if !p.replaced(damaged) {
			return nil, damage
		}
		p.torn = fmt.Sprintf("meta page %d was written only in part", damaged)
	}
	return p, nil
}

type boltMeta struct{ root, end, epoch uint64 }

func (p *File) meta(i int64) (boltMeta, error) {
	b := make([]byte, pageHeader+metaLength+8)
	if _, err := p.r.ReadAt(b, i*p.page); err != nil {
		return boltMeta{}, fmt.Errorf("read: %w", err)
	}
	if n := binary.LittleEndian.Uint64(b); n != uint64(i) {
		return boltMeta{}, fmt.Errorf("it says that it is page %d", n)
	}
	b = b[pageHeader:]
	h := fnv.New64a()
	_, _ = h.Write(b[:metaLength]) // a hash does not fail
	switch {
	case binary.LittleEndian.Uint32(b) != boltMagic:
		return boltMeta{}, fmt.Errorf("its magic number is %#x", binary.LittleEndian.Uint32(b))
	case binary.LittleEndian.Uint64(b[metaLength:]) != h.Sum64():
		return boltMeta{}, fmt.Errorf("its checksum is wrong")
	case binary.LittleEndian.Uint32(b[4:]) != boltVersion:
		return boltMeta{}, fmt.Errorf("its format is version %d, this program knows %d", binary.LittleEndian.Uint32(b[4:]), boltVersion)
	case int64(binary.LittleEndian.Uint32(b[8:])) != p.page:
		return boltMeta{}, fmt.Errorf("its page size is %d", binary.LittleEndian.Uint32(b[8:]))
	}
	return boltMeta{root: binary.LittleEndian.Uint64(b[16:]), end: binary.LittleEndian.Uint64(b[40:]), epoch: binary.LittleEndian.Uint64(b[48:])}, nil
}

// Each calls fn for every pair of a top-level bucket in the order of keys, and reports whether the
// bucket exists. fn owns key and value. The first call checks the pages of all other buckets as well.
func (p *File) Each(bucket []byte, fn func(key, value []byte) error) (found bool, err error) {
	w := walker{p: p, seen: map[uint64]bool{}}
	err = w.page(p.root, 0, bounds{}, func(flags uint32, key, value []byte) error {
		if flags&bucketElement == 0 {
			return fmt.Errorf("a value %q beside the buckets", key)
		}
		in := walker{p: p, seen: w.seen}
		each := func(flags uint32, key, value []byte) error {
			if flags&bucketElement != 0 {
				return fmt.Errorf("a bucket %q within bucket %q", key, bucket)
			}
			return fn(key, value)
		}
		if !bytes.Equal(key, bucket) {
			if p.whole {
				return nil
			}
			each = func(uint32, []byte, []byte) error { return nil }
		} else {
			found = true
		}
		if len(value) < bucketHeader {
			return fmt.Errorf("bucket %q has a head of %d bytes", key, len(value))
		}
		if root := binary.LittleEndian.Uint64(value); root != 0 {
			return in.page(root, 0, bounds{}, each)
		}
		return in.elements(value[bucketHeader:], 0, bounds{}, each)
	})
	p.whole = p.whole || err == nil
	return found, err
}

// walker visits the pages of one bucket.
type walker struct {
	p    *File
	seen map[uint64]bool // of all buckets: a page occurs once in the tree
	last []byte          // the previous key
}

// bounds are the keys that a page may hold: from low on, below high; nil means unbounded. The
// database finds a key by the keys of the branches, so the keys of branch and child must agree.
type bounds struct{ low, high []byte }

func (b bounds) check(key []byte) error {
	if (b.low != nil && bytes.Compare(key, b.low) < 0) || (b.high != nil && bytes.Compare(key, b.high) >= 0) {
		return fmt.Errorf("key %x is outside %x to %x, where its branch looks for it", key, b.low, b.high)
	}
	return nil
}

type pairFunc func(flags uint32, key, value []byte) error

func (w *walker) page(id uint64, depth int, in bounds, fn pairFunc) error {
	if id < 2 || id >= w.p.end || depth > maxDepth {
		return fmt.Errorf("page %d at depth %d: pages 2 to %d are in use", id, depth, w.p.end)
	}
	if w.seen[id] {
		return fmt.Errorf("page %d is in the tree twice", id)
	}
	w.seen[id] = true
	body := make([]byte, w.p.page)
	if _, err := w.p.r.ReadAt(body, int64(id)*w.p.page); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	if n := binary.LittleEndian.Uint64(body); n != id {
		return fmt.Errorf("page %d says that it is page %d", id, n)
	}
	over := uint64(binary.LittleEndian.Uint32(body[12:]))
	if over >= w.p.end-id {
		return fmt.Errorf("page %d is followed by %d more, and pages end at %d", id, over, w.p.end)
	}
	for i := id + 1; i <= id+over; i++ {
		if w.seen[i] {
			return fmt.Errorf("page %d is in the tree twice", i)
		}
		w.seen[i] = true
	}
	if over > 0 {
		body = append(body, make([]byte, int64(over)*w.p.page)...)
		if _, err := w.p.r.ReadAt(body[w.p.page:], int64(id+1)*w.p.page); err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
	}
	if err := w.elements(body, depth, in, fn); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// elements reads one page, including its header, from body.
func (w *walker) elements(body []byte, depth int, in bounds, fn pairFunc) error {
	if len(body) < pageHeader {
		return fmt.Errorf("a page of %d bytes", len(body))
	}
	flags, count := binary.LittleEndian.Uint16(body[8:]), int(binary.LittleEndian.Uint16(body[10:]))
	if flags != branchFlag && flags != leafFlag {
		return fmt.Errorf("it is of kind %#x, neither branch nor leaf", flags)
	}
	if flags == branchFlag && count == 0 {
		return fmt.Errorf("a branch without a page below it")
	}
	if count > (len(body)-pageHeader)/pageElement {
		return fmt.Errorf("%d elements do not fit in %d bytes", count, len(body))
	}
	for i := range count {
		at := pageHeader + i*pageElement
		e := body[at:]
		if flags == branchFlag {
			child, err := branchBounds(body, i, count, in)
			if err != nil {
				return err
			}
			if err := w.page(binary.LittleEndian.Uint64(e[8:]), depth+1, child, fn); err != nil {
				return err
			}
			continue
		}
		pos, n := binary.LittleEndian.Uint32(e[4:]), binary.LittleEndian.Uint32(e[8:])
		key, err := piece(body, at, pos, n)
		if err != nil {
			return err
		}
		value, err := piece(body, at+int(n), pos, binary.LittleEndian.Uint32(e[12:]))
		if err != nil {
			return err
		}
		if w.last != nil && bytes.Compare(w.last, key) >= 0 {
			return fmt.Errorf("key %x comes after key %x", key, w.last)
		}
		if err := in.check(key); err != nil {
			return err
		}
		w.last = key
		if err := fn(binary.LittleEndian.Uint32(e), key, value); err != nil {
			return err
		}
	}
	return nil
}

// branchBounds returns the bounds of the i-th of a branch's children.
func branchBounds(body []byte, i, count int, in bounds) (bounds, error) {
	key := func(i int) ([]byte, error) {
		at := pageHeader + i*pageElement
		return piece(body, at, binary.LittleEndian.Uint32(body[at:]), binary.LittleEndian.Uint32(body[at+4:]))
	}
	low, err := key(i)
	if err != nil {
		return in, err
	}
	if err := in.check(low); err != nil {
		return in, err
	}
	in.low = low // also for the first child: the database panics on a file in which a key is below the key of its branch
	if i+1 < count {
		if in.high, err = key(i + 1); err == nil && bytes.Compare(low, in.high) >= 0 {
			err = fmt.Errorf("branch key %x comes after %x", in.high, low)
		}
	}
	return in, err
}

// piece returns n bytes of body, starting pos bytes after at.
func piece(body []byte, at int, pos, n uint32) ([]byte, error) {
	from := uint64(at) + uint64(pos)
	if from > uint64(len(body)) || uint64(n) > uint64(len(body))-from || n > math.MaxInt32 {
		return nil, fmt.Errorf("an element of %d bytes at %d, in %d bytes", n, from, len(body))
	}
	return body[from : from+uint64(n)], nil
}

// EachLeaf calls fn for every pair in a leaf page of the file, including pages that the tree no
// longer reaches and freed pages. The caller must be able to tell from a pair alone whether it is
// intact, and which of two pairs is newer. EachLeaf skips damaged pages and needs no meta page. It
// returns only errors of reading the file.
func EachLeaf(f Source, fn func(key, value []byte)) error {
	page, size, err := pageSizeOf(f)
	if err != nil {
		return err
	}
	head := make([]byte, pageHeader)
	for at := 2 * page; at+page <= size; at += page {
		if _, err := f.ReadAt(head, at); err != nil {
			return fmt.Errorf("%s, byte %d: %w", f.Name(), at, err)
		}
		pages := 1 + int64(binary.LittleEndian.Uint32(head[12:]))
		if binary.LittleEndian.Uint16(head[8:]) != leafFlag || binary.LittleEndian.Uint64(head) != uint64(at/page) || pages > (size-at)/page {
			continue
		}
		body := make([]byte, pages*page)
		if _, err := f.ReadAt(body, at); err != nil {
			return fmt.Errorf("%s, byte %d: %w", f.Name(), at, err)
		}
		pairsIn(body, fn)
	}
	return nil
}

// pairsIn calls fn for the pairs of a leaf, and for the pairs of the small buckets inside the leaf.
func pairsIn(body []byte, fn func(key, value []byte)) {
	count := int(binary.LittleEndian.Uint16(body[10:]))
	for i := 0; i < count && pageHeader+(i+1)*pageElement <= len(body); i++ {
		at := pageHeader + i*pageElement
		flags, pos := binary.LittleEndian.Uint32(body[at:]), binary.LittleEndian.Uint32(body[at+4:])
		n, m := binary.LittleEndian.Uint32(body[at+8:]), binary.LittleEndian.Uint32(body[at+12:])
		key, err := piece(body, at, pos, n)
		if err != nil {
			continue
		}
		value, err := piece(body, at+int(n), pos, m)
		if err != nil {
			continue
		}
		switch {
		case flags&bucketElement == 0:
			fn(key, value)
		case len(value) >= bucketHeader+pageHeader:
			pairsIn(value[bucketHeader:], fn)
		}
	}
}

// pageSizeOf returns a file's page size, or that of this machine if the file does not state it, and
// the file's size in bytes.
func pageSizeOf(f Source) (page, size int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	page = int64(os.Getpagesize())
	var head [pageHeader + metaLength]byte
	if _, err := f.ReadAt(head[:], 0); err == nil {
		if n := int64(binary.LittleEndian.Uint32(head[pageHeader+8:])); n >= minPageSize && n <= maxPageSize && n&(n-1) == 0 {
			page = n
		}
	} else if !errors.Is(err, io.EOF) {
		return 0, 0, err
	}
	return page, info.Size(), nil
}
