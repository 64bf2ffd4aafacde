"""Image captioning with an attentive LSTM decoder (Show, Attend and Tell, Xu et al. 2015)."""
