package engine

import (
	"strconv"
	"strings"

	"larder/internal/engine/work"
	"larder/internal/errs"
	"larder/internal/prep"
	"larder/internal/prep/fields"
	"larder/internal/source"
	larderv1 "larder/proto/larder/v1"
)

// mixedRecipe is the recipe of a job with steps in Python on a dataset that the daemon reads: its own workers read and
// decode samples, and run built-in ops, workers of clients run the steps in Python. A file is always the same, so the
// decoded form is what the steps before the first random one make, as of items that are cached.
func mixedRecipe(data *source.Dataset, spec *larderv1.JobSpec) (*prep.Recipe, *work.Made, error) {
	ops := stepsOf(spec)
	if ops[0].GetKind() != pythonOp && ops[0].GetName() != fields.OpName {
		return nil, nil, errs.New(errs.RecipeInvalid, "transform", "put "+fields.OpName+" before it",
			"op 0, %s: in a recipe with steps in Python, built-in ops begin with a %s op", ops[0].GetName(), fields.OpName)
	}
	made := &work.Made{Stored: true, Python: true, Steps: uint32(1 + len(ops)), Timeout: defaultTimeout}
	if schema := data.Schema(); schema != nil {
		made.Item = fields.Files(opsOf(spec), schema)
	} else {
		made.Image, made.Item = true, work.ImageSchema
	}
	if err := handedOut(spec, made); err != nil {
		return nil, nil, err
	}
	if err := planSteps(spec, made, true); err != nil {
		return nil, nil, err
	}
	made.Weight = weigh(data, made)
	recipe, err := foreignRecipe(data, spec, made)
	return recipe, made, err
}

// nameSource hands to a hash what the first step of a recipe begins with. Records that are read are the same in every
// dataset that names their file, but for the labels of images, which are those of the dataset.
func nameSource(str func(string), data *source.Dataset, made *work.Made) {
	if !made.Stored || made.Image {
		str(data.URI())
		str(strconv.FormatUint(data.Fingerprint(), 16))
	}
	if made.Stored {
		var b strings.Builder
		made.Item.Describe(&b)
		str("stored item 1 " + prep.DecoderName())
		str(b.String())
	}
}
