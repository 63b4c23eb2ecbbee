// Package keyorder gives the keys of mappers' lines another order than that of their bytes, for
// example some fields as numbers, and some descending. It encodes a key such that the bytes of the
// encoding have the wanted order. Code that sorts, merges and compares keys therefore need not know
// the order.
//
// # What it is
//
// Parse reads the entries of key_order, one for each field of a key. Order.Append encodes a key,
// Order.Decode restores it, and Order.Compare compares two keys.
//
//   - text: by bytes. number: by value, as "sort -n" does: after blanks a sign, digits, and digits
//     after a point, of any length; the rest of the field does not count, and a field that does not
//     begin with a number is 0. Unlike in "sort -n", a "+" is a sign.
//   - Fields are compared one after the other. Different fields are never equal: among fields of
//     the same value, the plain one ("1") comes before all others ("01", "1.0"), which are ordered
//     by their bytes. The lines of one key are therefore adjacent, and so are the lines with the
//     same first fields.
//   - desc: the exact reverse. A key that ends before a field comes before the keys that have that
//     field, in both directions.
//
// # What it is not
//
// The package knows nothing of lines, reducers and partitions. Keys contain no newline; the last
// field contains the rest of the key, tabs included. The encoding is never stored beyond a job.
//
// # Who calls it
//
// Package jobspec checks job files with it, and package mapreduce sorts with it; these two may not
// import each other. keyorder imports almost nothing, because the harness uses it.
package keyorder
