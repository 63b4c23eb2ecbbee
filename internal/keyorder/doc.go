// Package keyorder puts the keys of mappers' lines into another order than that of their bytes:
// some fields as numbers, some the other way round. It does so by writing a key anew such that the
// bytes of what it wrote have the wanted order, so that code that sorts, merges and compares keys
// need not know of it.
//
// # What it is
//
// Parse reads the entries of key_order, one for each field of a key. Order.Append encodes a key,
// Order.Decode returns it as it was, and Order.Compare compares two.
//
//   - text: by bytes. number: by value, as "sort -n" does: after blanks a sign, digits, and digits behind a point, of
//     any length; what follows does not count, and a field that does not begin with a number is 0. Unlike there, a "+"
//     is a sign.
//   - Fields are compared one after the other. Fields that are different are never equal: of those with the same value
//     the plain one ("1") comes before all others ("01", "1.0"), which are in the order of their bytes. The lines of
//     one key are therefore beside each other, and so are those of its first fields.
//   - desc: the exact reverse. A key that ends before a field comes before those that go on, in both directions.
//
// # What it is not
//
// It knows nothing of lines, reducers and partitions. Keys have no newline; the last field has all
// that remains, tabs included. The encoding is never stored beyond a job.
//
// # Who calls it
//
// Package jobspec checks job files with it, and package mapreduce sorts with it; they may not
// import each other. It imports next to nothing, as the harness does.
package keyorder
