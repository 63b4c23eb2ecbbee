package report

import (
	"fmt"
	"io"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// The size of a plot without its legend, and the space around the legend.
const (
	plotWidth    = 20 * vg.Centimeter
	plotHeight   = 12 * vg.Centimeter
	legendMargin = 4 * vg.Millimeter
)

// SavePlot writes a plot as path.svg and path.png. The legend stands at the right of the axes, so that
// it hides no line.
func SavePlot(p *plot.Plot, path string) error {
	for _, format := range []string{"svg", "png"} {
		if err := savePlot(p, path+"."+format, format); err != nil {
			return fmt.Errorf("plot %s.%s: %w", path, format, err)
		}
	}
	return nil
}

func savePlot(p *plot.Plot, path, format string) error {
	legend := p.Legend
	legend.Top, legend.Left, legend.XOffs, legend.YOffs = true, true, 0, 0
	beside := vg.Length(0)
	if width := legendWidth(&legend); width > 0 {
		beside = width + 2*legendMargin
	}
	c, err := draw.NewFormattedCanvas(plotWidth+beside, plotHeight, format)
	if err != nil {
		return err
	}
	all := draw.New(c)
	axes := *p
	axes.Legend = plot.NewLegend()
	axes.Draw(draw.Crop(all, 0, -beside, 0, 0))
	if beside > 0 {
		legend.Draw(draw.Crop(all, plotWidth+legendMargin, -legendMargin, 0, -2*legendMargin))
	}
	return writeCanvas(c, path)
}

// legendWidth returns the width of a legend, 0 if it is empty.
func legendWidth(l *plot.Legend) vg.Length {
	c, err := draw.NewFormattedCanvas(plotWidth, plotHeight, "svg")
	if err != nil {
		return 0
	}
	r := l.Rectangle(draw.New(c))
	if w := r.Max.X - r.Min.X; w > l.ThumbnailWidth {
		return w
	}
	return 0
}

func writeCanvas(c io.WriterTo, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := c.WriteTo(f); err != nil {
		_ = f.Close() // the first error counts
		return err
	}
	return f.Close()
}
