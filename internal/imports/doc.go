// Package imports has no code: its test checks which packages may import which.
package imports
