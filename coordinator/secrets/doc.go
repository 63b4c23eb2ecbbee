// Package secrets encrypts the secrets of tenants with keys from a file of the
// operator, which is no part of the log, of snapshots and of backups.
//
// A value is sealed with AES-256-GCM under a random nonce. Tenant, name and
// version are authenticated with it, so that a ciphertext cannot be passed off as
// another secret, another version or another tenant's.
//
// The key file has one key a line, the newest last:
//
//	drover-secrets-key KEY ID
//
// where KEY is 32 random bytes in base64, and ID is the first bytes of a hash of it: a key
// that a disk has changed is not used. The newest key encrypts, all decrypt: a
// rotation adds a line (AddKey), encrypts everything again, and removes the lines
// above. Several coordinators have copies of one file, which the operator makes.
// The file is read again whenever it has changed (Keys).
//
// Package coordinator calls this package; the facts store what it seals, and know
// nothing of it. The caller must keep values out of logs, errors and anything that
// is stored.
package secrets
