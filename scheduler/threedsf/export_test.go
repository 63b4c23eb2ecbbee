package threedsf

// SetCompressBatch sets how many pieces of work one cycle of a compression visits.
func (p *Policy) SetCompressBatch(n int) { p.compressBatch = n }
