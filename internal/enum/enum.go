// Package enum prints the values of closed sets.
package enum

import "fmt"

// Name returns the name that names has at the index of a value, or kind(value) if that is not in
// the set.
func Name[T ~uint8 | ~int](kind string, value T, names []string) string {
	if value >= 0 && int(value) < len(names) && names[value] != "" {
		return names[value]
	}
	return fmt.Sprintf("%s(%d)", kind, int(value))
}
