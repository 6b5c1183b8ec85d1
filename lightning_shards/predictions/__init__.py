"""Files of predictions: what `predict_step` returned as rows, the formats, and merging."""
