package secrets

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/drover-run/drover/internal/durable"
	"github.com/drover-run/drover/internal/fault"
)

const (
	keyBytes    = 32
	keyWord     = "drover-secrets-key"
	maxKeys     = 16
	maxKeyFile  = 64 << 10
	keyIDBytes  = 4
	keyFileMode = 0o600
)

// ID names a secret's version: what a ciphertext is bound to.
type ID struct {
	Tenant, Name string
	Version      uint32
}

// additional returns what is authenticated with a value. Lengths keep two
// different IDs from having the same bytes.
func (id ID) additional() []byte {
	b := []byte("drover secret 1")
	for _, s := range []string{id.Tenant, id.Name} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	return binary.BigEndian.AppendUint32(b, id.Version)
}

// Sealed is an encrypted value.
type Sealed struct {
	Key               string // id of the key
	Nonce, Ciphertext []byte
}

// key is one line of a key file.
type key struct {
	id   string
	aead cipher.AEAD
}

// Keyring is the keys of a file, the newest last. It never changes.
type Keyring struct{ keys []key }

// Current returns the id of the key that encrypts.
func (r *Keyring) Current() string { return r.keys[len(r.keys)-1].id }

// Has reports whether a key is in the file.
func (r *Keyring) Has(id string) bool {
	return slices.ContainsFunc(r.keys, func(k key) bool { return k.id == id })
}

// Seal encrypts a value with the newest key.
func (r *Keyring) Seal(id ID, value []byte) Sealed {
	k := r.keys[len(r.keys)-1]
	nonce := make([]byte, k.aead.NonceSize())
	_, _ = rand.Read(nonce) // never fails: see its documentation
	return Sealed{k.id, nonce, k.aead.Seal(nil, nonce, value, id.additional())}
}

// Open decrypts a value. Unavailable: the key is not in the file. Corrupt: the
// value was changed, or is another secret's.
func (r *Keyring) Open(id ID, s Sealed) ([]byte, error) {
	for _, k := range r.keys {
		if k.id != s.Key {
			continue
		}
		if len(s.Nonce) != k.aead.NonceSize() {
			return nil, damaged(id)
		}
		value, err := k.aead.Open(nil, s.Nonce, s.Ciphertext, id.additional())
		if err != nil {
			return nil, damaged(id)
		}
		return value, nil
	}
	return nil, fault.New(fault.Unavailable, "key %s of secret %q is not in this coordinator's key file: copy the file from the coordinator where it was added", s.Key, id.Name)
}

func damaged(id ID) error {
	return fault.New(fault.Corrupt, "version %d of secret %q of tenant %q is damaged: put it again", id.Version, id.Name, id.Tenant)
}

// Load reads a key file. NotFound: there is none. Denied: others may read it.
// Invalid: it is no key file. No error quotes what is in it.
func Load(path string) (*Keyring, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "there is no key file %s: make it with `drover secret key %s`, or copy it from another coordinator of the cluster", path, path)
	}
	if err != nil {
		return nil, fault.New(fault.Denied, "key file: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fault.New(fault.Denied, "key file: %w", err)
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 {
		return nil, fault.New(fault.Denied, "others can read the keys in %s (mode %04o), or it is no regular file: `chmod 600 %s`", path, st.Mode().Perm(), path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return nil, fault.New(fault.Denied, "key file: %w", err)
	}
	r, err := parse(b)
	if err != nil {
		return nil, fault.New(fault.Invalid, "key file %s: %w; copy it from another coordinator, or from where you keep the copy", path, err)
	}
	return r, nil
}

// parse reads the lines of a key file.
func parse(b []byte) (*Keyring, error) {
	r := &Keyring{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		k, err := parseKey(line)
		if err != nil {
			return nil, fmt.Errorf("line %d %w", n, err)
		}
		if r.keys = append(r.keys, k); len(r.keys) > maxKeys {
			return nil, fmt.Errorf("more than %d keys: remove the oldest, after `drover secret rotate`", maxKeys)
		}
	}
	if lines.Err() != nil || len(r.keys) == 0 {
		return nil, errors.New("it has no key")
	}
	return r, nil
}

// parseKey reads one line. Lines of earlier versions have no id.
func parseKey(line string) (key, error) {
	f := strings.Fields(line)
	if len(f) < 2 || len(f) > 3 || f[0] != keyWord {
		return key{}, fmt.Errorf("is no key: it is %q, %d bytes in base64 and the key's id, with blanks between them", keyWord, keyBytes)
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(f[1])
	if err != nil || len(raw) != keyBytes {
		return key{}, fmt.Errorf("is damaged: its key is not %d bytes in base64", keyBytes)
	}
	k, err := newKey(raw)
	if err == nil && len(f) == 3 && f[2] != k.id {
		err = errors.New("is damaged: its key has another id than the line says")
	}
	return k, err
}

func newKey(raw []byte) (key, error) {
	block, err := aes.NewCipher(raw)
	if err != nil {
		return key{}, err
	}
	aead, err := cipher.NewGCM(block)
	sum := sha256.Sum256(append([]byte("drover secret key id "), raw...))
	return key{hex.EncodeToString(sum[:keyIDBytes]), aead}, err
}

// AddKey appends a new key to a key file, which it makes if there is none, and
// returns its id. The file is replaced at once, so that a reader sees all of it.
func AddKey(path string) (id string, err error) {
	var old []byte
	switch _, err := Load(path); {
	case err == nil:
		if old, err = os.ReadFile(path); err != nil {
			return "", err
		}
	case !errors.Is(err, fault.NotFound):
		return "", err
	}
	raw := make([]byte, keyBytes)
	_, _ = rand.Read(raw) // never fails: see its documentation
	k, err := newKey(raw)
	if err != nil {
		return "", err
	}
	if len(old) > 0 && !bytes.HasSuffix(old, []byte("\n")) {
		old = append(old, '\n')
	}
	text := append(old, keyWord+" "+base64.StdEncoding.EncodeToString(raw)+" "+k.id+"\n"...)
	if _, err := parse(text); err != nil {
		return "", fault.New(fault.Exhausted, "key file %s: %w", path, err)
	}
	return k.id, replaceFile(path, text)
}

// replaceFile writes a key file, of the owner of the file that it replaces.
func replaceFile(path string, text []byte) error {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a command that was killed
		return fault.New(fault.Invalid, "key file: %w", err)
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, keyFileMode)
	if err != nil {
		return fault.New(fault.Invalid, "key file: %w", err)
	}
	if err = chownLike(f, path); err == nil {
		_, err = f.Write(text)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(fault.New(fault.Invalid, "key file: %w", err), os.Remove(tmp))
	}
	return durable.SyncFolder(filepath.Dir(path)) // what is encrypted with a key that a loss of power takes back is lost
}

// chownLike gives a file that root made to the owner of the file at path, or of its folder if there
// is none. The coordinator, which is not root, could not read it otherwise.
func chownLike(f *os.File, path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		st, err = os.Stat(filepath.Dir(path))
	}
	if err != nil {
		return err
	}
	own, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	return f.Chown(int(own.Uid), int(own.Gid))
}

// Keys is a key file that is read again when it has changed. It is safe for
// concurrent use.
type Keys struct {
	path string

	mu   sync.Mutex
	ring *Keyring
	seen fileState
}

// fileState tells two contents of a file apart.
type fileState struct {
	size    int64
	changed time.Time
	file    os.FileInfo
}

// Follow returns the keys of a file, which need not exist yet.
func Follow(path string) *Keys { return &Keys{path: path} }

// Path returns the file's path.
func (k *Keys) Path() string { return k.path }

// Ring returns the keys that are in the file now. Its errors are Load's. A file
// that became unreadable is an error: what an operator took away is not used on.
func (k *Keys) Ring() (*Keyring, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	st, err := os.Stat(k.path)
	if err == nil && k.ring != nil && k.seen.file != nil && os.SameFile(st, k.seen.file) && st.Size() == k.seen.size && st.ModTime().Equal(k.seen.changed) && st.Mode() == k.seen.file.Mode() {
		return k.ring, nil
	}
	ring, loadErr := Load(k.path)
	if loadErr != nil {
		k.ring = nil
		return nil, loadErr
	}
	if k.ring = ring; err == nil {
		k.seen = fileState{st.Size(), st.ModTime(), st}
	}
	return ring, nil
}
