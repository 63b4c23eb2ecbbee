package hcl

import "fmt"

// zeroHints say what to write instead of zero in the fields in which a job
// without the field has a default, so that a written zero would silently become
// that default.
var zeroHints = map[string]string{
	"cpu":              "give at least 10m, or leave it out for 1 core",
	"memory":           "give at least 8MiB, or leave it out for 256MiB",
	"io":               "give at least 64KiB/s, or leave it out for 10MiB/s",
	"disk":             "give at least 1MiB, or leave it out for the default",
	"tasks":            "give at least 1, or leave it out for 1 task; if the mappers write the result, leave out the reduce stage",
	"attempts":         "give at least 1, or leave it out for 4 attempts",
	"key_fields":       "give the number of the first fields of a line that are its key, or leave it out for one",
	"partition_fields": "give the number of the key's first fields that choose the task, or leave it out for all",
	"slow_start":       "give a part of the map tasks such as 0.8, or leave it out for all",
	"mode":             `give permission bits such as "0644"`,
	"runtime_bound":    "give how long one task of the job may run, such as 30m, or leave it out",
	"time_limit":       "give a time such as 30m, or leave it out for no limit",
}

// nonZeroAttr reads a field of zeroHints with read, which stores into to, and
// refuses zero.
func nonZeroAttr[T comparable](read attrReader, to *T) attrReader {
	return func(d *decoder, v attrValue) {
		var zero T
		n := len(d.diags)
		if read(d, v); len(d.diags) == n && *to == zero {
			d.addError(v.valueRange, fmt.Sprintf("%s is zero or rounds to it", v.name), zeroHints[v.name])
		}
	}
}
