// Package imports has no code: its tests check which packages may import which, and that no type
// grows too many methods.
package imports
