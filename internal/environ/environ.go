// Package environ joins environments of processes.
package environ

import "strings"

// Merge joins lists of "NAME=VALUE". The last value of a name wins; names keep the order of their
// first occurrence. Merge changes none of the lists.
func Merge(lists ...[]string) []string {
	at := map[string]int{}
	var all []string
	for _, list := range lists {
		for _, kv := range list {
			name, _, _ := strings.Cut(kv, "=")
			if i, ok := at[name]; ok {
				all[i] = kv
				continue
			}
			at[name] = len(all)
			all = append(all, kv)
		}
	}
	return all
}
